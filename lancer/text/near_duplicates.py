"""How much of their wording two texts share, by word n-grams."""

from __future__ import annotations

import re
from typing import Final

_WORD: Final = re.compile(r"\w+")


def ngrams(text: str, n: int) -> set[tuple[str, ...]]:
    """The word n-grams of a text, in lower case; one shorter gram for a text of fewer than n words."""
    words = _WORD.findall(text.lower())
    return {tuple(words[start : start + n]) for start in range(max(1, len(words) - n + 1))} if words else set()


def ngram_jaccard(a: str, b: str, n: int = 5) -> float:
    """Shared n-grams over all n-grams of both texts, 0 to 1; 0 when both are empty."""
    first, second = ngrams(a, n), ngrams(b, n)
    return len(first & second) / max(1, len(first | second))
