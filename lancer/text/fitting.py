"""A document that is too long for a prompt: its beginning, or overlapping windows, both ending where sentences end.

What fits is for the caller to say, in tokens of a whole prompt or however else; a text that fits must fit without its
last sentences too.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

OVERLAP: Final = 0.25  # of a window, in characters, that begins the next one

Fits = Callable[[str], bool]

# The end of a sentence with its closing marks and the blanks behind it; a line end; CJK sentences need no blank.
_END: Final = re.compile(r"[.!?\u2026]+[\"'\u2019\u201d)\]]*\s+|[\u3002\uff01\uff1f]+[\u300d\u201d]*\s*|\n+")
_WORD: Final = re.compile(r"\S+\s*")


def cut(text: str, fits: Fits) -> str:
    """The longest beginning of whole sentences that fits; of whole words, then characters, where no sentence does.

    The text itself when all of it fits, or when nothing does.
    """
    if fits(text) or not fits(""):
        return text
    end = _last(_ends(text, _END), lambda at: fits(text[:at].rstrip()))
    end = end or _last(_ends(text, _WORD), lambda at: fits(text[:at].rstrip()))
    end = end or _last(range(1, len(text)), lambda at: fits(text[:at]))
    return text[:end].rstrip() if end else text


def windows(text: str, fits: Fits, overlap: float = OVERLAP) -> list[str]:
    """Pieces that fit and together hold every character but blanks between them; one begins with what ended the last.

    Each is as long as it can be; at most `overlap` of it, in whole sentences, comes again. The text alone when all of
    it fits, or when nothing does.
    """
    if fits(text) or not fits(""):
        return [text]
    found: list[str] = []
    start, done = 0, 0
    while done < len(text):
        piece = cut(text[start:], fits)
        if not fits(piece):
            return [text]  # not one character of it does
        found.append(piece)
        done = start + len(piece)
        done += len(text[done:]) - len(text[done:].lstrip())
        start = _again(text, start, done, overlap)
    return found


def _again(text: str, start: int, end: int, overlap: float) -> int:
    """Where the next window begins: at a sentence inside the last part of this one, or behind it."""
    least = end - overlap * (end - start)
    starts = [start + at for at in _ends(text[start:end], _END)]
    return next((at for at in starts if least <= at < end), end)


def _ends(text: str, unit: re.Pattern[str]) -> list[int]:
    return [match.end() for match in unit.finditer(text)]


def _last(places: Sequence[int], good: Callable[[int], bool]) -> int:
    """The last place that is good, by bisection; 0 without any."""
    number = bisect_left(places, True, key=lambda at: not good(at))
    return places[number - 1] if number else 0
