from __future__ import annotations

import pytest

from lancer.text.words import first_words


@pytest.mark.parametrize(
    ("text", "most", "cut"),
    [
        ("one two  three", 2, "one two"),
        ("one two\n\nthree four", 3, "one two\n\nthree"),
        ("one two", 2, "one two"),
        ("one two ", 5, "one two "),
        ("", 3, ""),
        ("one two", None, "one two"),
    ],
)
def test_a_text_is_cut_after_a_word(text: str, most: int | None, cut: str) -> None:
    assert first_words(text, most) == cut
