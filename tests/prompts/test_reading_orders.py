from __future__ import annotations

import pytest

from lancer.prompts.reading_orders import ReadOrder, read_order


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[2] > [3] > [1]", ReadOrder([1, 2, 0], True)),
        ("[3]", ReadOrder([2, 0, 1], True, missing=2)),
        ("[2] > [7] > [0] > [1] > [3]", ReadOrder([1, 0, 2], True, unknown=2)),
        ("[2] > [2] > [1] > [2] > [3]", ReadOrder([1, 0, 2], True, repeated=2)),
        ("3 1\n2", ReadOrder([2, 0, 1], True)),
        ("I cannot rank these 2 documents.", ReadOrder([0, 1, 2], False, missing=3)),
        ("Document 2 helps most, then 3.", ReadOrder([0, 1, 2], False, missing=3)),
        ("1. 3\n2. 1\n3. 2", ReadOrder([0, 1, 2], False, missing=3)),
        ("Of the 3 documents, in 2024: [3] > [1] > [2]", ReadOrder([2, 0, 1], True)),
        ("3 > 1 > 2", ReadOrder([2, 0, 1], True)),
        ("3, 1, 2.", ReadOrder([2, 0, 1], True)),
        ("<think>[1] > [2]</think>[ 3 ] > [2] > [1]", ReadOrder([2, 1, 0], True)),
        ("<think>[3] > [2] is clear, but", ReadOrder([0, 1, 2], False, missing=3)),
        ("I cannot order these.", ReadOrder([0, 1, 2], False, missing=3)),
        ("", ReadOrder([0, 1, 2], False, missing=3)),
        ("[9]", ReadOrder([0, 1, 2], False, missing=3, unknown=1)),
        ("3.5 percent and 2% of 1,000", ReadOrder([0, 1, 2], False, missing=3)),
    ],
)
def test_what_an_output_orders(text: str, expected: ReadOrder) -> None:
    assert read_order(text, 3) == expected


def test_a_thinking_block_that_the_template_opened_and_nobody_closed_is_no_answer() -> None:
    assert not read_order("<think>\n[3] > [1]", 3).read


@pytest.mark.parametrize(
    ("text", "order", "read"),
    [
        ("3 > 1", [2, 0, 1], True),  # it may have been 10
        ("3 > 1 >", [2, 0, 1], True),
        ("[3] > [1] > [2", [2, 0, 1], True),
        ("[3] > [2]", [2, 1, 0], True),  # a closed bracket ends its number
        ("3", [0, 1, 2], False),
    ],
)
def test_the_last_number_of_an_output_that_was_cut_may_go_on(text: str, order: list[int], read: bool) -> None:
    found = read_order(text, 3, cut=True)
    assert (found.order, found.read) == (order, read)
