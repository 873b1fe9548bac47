from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancer.prompts import compress
from lancer.prompts.compress import Extraction, parse, render
from lancer.prompts.unread import Unread


@pytest.mark.parametrize(
    ("output", "kept", "unknown"),
    [
        ("[2, 5]", (1, 4), 0),
        ("[]", (), 0),
        ("none", (), 0),
        ("None.", (), 0),
        ("2, 5", (1, 4), 0),
        ("2 and 5.", (1, 4), 0),
        ("2\n5", (1, 4), 0),
        ("```json\n[5,2]\n```", (1, 4), 0),
        ("Sentences to keep: [3]", (2,), 0),
        ("<think>maybe 4</think>[1]", (0,), 0),
        ("[2, 2, 2]", (1,), 0),
        ("[0, 2, 6, 77]", (1,), 3),
        ("[2, 5,]", (1, 4), 0),
    ],
)
def test_what_is_a_list_is_read_and_unknown_numbers_are_dropped_and_counted(
    output: str, kept: tuple[int, ...], unknown: int
) -> None:
    assert parse(output, 5) == Extraction(kept, unknown)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("", Unread.empty),
        ("[2, 5", Unread.no_number),
        ("Sentence 2 is about the dam.", Unread.no_number),
        ("I keep 2 and 5 because they help", Unread.no_number),
        ("2-4", Unread.no_number),
        ("[2.5]", Unread.no_number),
        ("-2", Unread.no_number),
        ("I am sorry, I cannot help with that.", Unread.refusal),
        ("<think>2, 5", Unread.unfinished_thinking),
        ("[9, 10]", Unread.out_of_range),
        ("The beavers are back.", Unread.no_number),
        ("[[2], 5]", Unread.no_number),
    ],
)
def test_what_is_no_list_is_unread_with_its_reason(output: str, reason: Unread) -> None:
    found = parse(output, 5)
    assert (found.kept, found.reason) == (None, reason)


def test_an_output_that_was_cut_off_is_unread() -> None:
    assert parse("[1, 2", 20, cut=True).reason == Unread.cut_off
    assert parse("1, 2", 20, cut=True).reason == Unread.cut_off


@given(st.text(), st.integers(1, 9))
def test_any_output_gives_known_sentences_or_a_reason(output: str, n: int) -> None:
    found = parse(output, n)
    if found.kept is None:
        assert found.reason
    else:
        assert list(found.kept) == sorted(set(found.kept))
        assert all(0 <= i < n for i in found.kept)


def test_long_blanks_do_not_take_long() -> None:
    assert parse("1" + " " * 100_000 + "x", 5).kept is None


def test_the_prompts_of_a_query_share_their_beginning_and_sentences_have_a_line_each() -> None:
    first = render(request="of dams", sub_questions=["How high?"], sentences=["One\ntwo.", "7. Keep 2."])[-1]
    second = render(request="of dams", sub_questions=["How high?"], sentences=["Other."], sharper=True)[-1]
    shared = first["shared"]
    assert shared == second["shared"]
    assert first["content"][:shared] == second["content"][:shared]
    assert "of dams" in first["content"][:shared]
    assert "\n1. One two.\n2. 7. Keep 2.\n</document>" in first["content"]
    assert second["content"].endswith("from 1 to 1 in square brackets. No word, no sentence, no explanation.")
    assert "<request>" not in render(request=None, sub_questions=["a?"], sentences=["b."])[-1]["content"]
    assert "<questions>" not in render(request="r", sub_questions=[], sentences=["b."])[-1]["content"]


def test_the_schema_is_json() -> None:
    assert json.loads(compress.SCHEMA)["type"] == "array"


def test_the_example_is_read_as_it_is_meant() -> None:
    example, answer, _ = render(request="r", sub_questions=[], sentences=["s."])
    assert "5. Watering one young tree" in example["content"]
    assert parse(answer["content"], 5) == Extraction((2, 4))
