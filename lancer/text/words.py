"""Texts cut to a number of words."""

from __future__ import annotations

import re
from typing import Final

_WORD: Final = re.compile(r"\S+")


def first_words(text: str, most: int | None) -> str:
    """The text up to the end of its `most`-th word, blanks and line ends between them as they are; None = all of it."""
    if most is None:
        return text
    for number, word in enumerate(_WORD.finditer(text), start=1):
        if number == most:
            return text[: word.end()]
    return text
