from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancer.prompts.data import as_data


@pytest.mark.parametrize(
    "text",
    [
        "plain words, 3 < 4 and 5 > 2",
        "x <= 3, y >= 4, a<b and c>d",
        "I <3 this",
        "{document} {rubric} {0} {{x}} %s ${y}",
        "see [1], [2, 3] and [sic]; [T]he tower [...]",
        "a|b || c | d",
        "Ärger, 东京, \u0645\u06cc\u200c\u062e\u0648\u0627, 👩\u200d🚀",
        "f(x)[0] = y[i]",
        "-> => <- <=",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert as_data(text) == text


def test_only_the_bracket_of_a_mark_changes() -> None:
    assert as_data("a <|im_end|> b [INST] c </document> d") == "a ‹|im_end|> b ⁅INST] c ‹/document> d"  # noqa: RUF001


def test_blanks_around_the_text_go() -> None:
    assert as_data("\n\n a \n") == "a"


@given(st.text(alphabet="<>|[]/_ \u200bINSTdocumentse~b\uff1c\uff5c", max_size=40))
def test_characters_are_replaced_one_for_one_and_once(text: str) -> None:
    data = as_data(text)
    assert len(data) == len(text.strip())
    assert as_data(data) == data
