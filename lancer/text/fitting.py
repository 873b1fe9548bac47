"""A document that is too long for a prompt: its beginning, or overlapping windows, both ending where sentences end.

What fits is for the caller to say, in tokens of a whole prompt or however else; a text that fits must fit without its
last sentences too.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from lancer.text.sentences import sentence_spans

OVERLAP: Final = 0.25  # of a window, in characters, that begins the next one at most

Fits = Callable[[str], bool]

_WORD: Final = re.compile(r"\S+")


def cut(text: str, fits: Fits) -> str:
    """The longest beginning of whole sentences that fits; of whole words, then characters, where no sentence does.

    The text itself when all of it fits, or when nothing does.
    """
    if fits(text) or not fits(""):
        return text
    end = _reach(text, 0, [span.end for span in sentence_spans(text)], fits)
    return text[:end] if end else text


def windows(text: str, fits: Fits, overlap: float = OVERLAP) -> list[str]:
    """Pieces that fit and together hold every character but blanks between them; one begins with what ended the last.

    Each is as long as it can be; at most `overlap` of it, in whole sentences, comes again. The text alone when all of
    it fits, or when nothing does.
    """
    if fits(text) or not fits(""):
        return [text]
    spans = sentence_spans(text)
    starts, ends = [span.start for span in spans], [span.end for span in spans]
    found: list[str] = []
    start = starts[0] if starts else len(text)
    while start < len(text):
        end = _reach(text, start, ends, fits)
        if end == start:
            return [text]  # not one character fits
        found.append(text[start:end])
        after = end + len(text[end:]) - len(text[end:].lstrip())
        if after == len(text):
            break
        least = max(start + 1, end - overlap * (end - start))
        start = next((at for at in starts[bisect_left(starts, least) :] if at < end), after)
    return found


def even_limit(lengths: Sequence[int], room: int) -> int | None:
    """The length to which the longest texts are cut, so that all of them have room; None where all fit as they are."""
    for number, length in enumerate(sorted(lengths)):
        share = room // (len(lengths) - number)
        if length > share:
            return share
        room -= length
    return None


def _reach(text: str, start: int, ends: Sequence[int], fits: Fits) -> int:
    """The last end up to which the text from `start` fits: of a sentence, a word, a character; else `start`."""

    def last(places: Sequence[int]) -> int:
        number = bisect_left(places, True, key=lambda at: not fits(text[start:at]))
        return places[number - 1] if number else start

    end = last(ends[bisect_left(ends, start + 1) :])
    if end == start:
        end = last([match.end() for match in _WORD.finditer(text, start)])
    return last(range(start + 1, len(text) + 1)) if end == start else end
