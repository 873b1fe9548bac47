"""Which sentences of a document stay, and the text they make (papers/002, section 17.7.2)."""

from __future__ import annotations

from collections.abc import Sequence

from lancer.text.sentences import Span


def best_sentences(scores: Sequence[float], *, limit: int, threshold: float) -> list[int]:
    """The sentences of the highest scores of at least `threshold`, at most `limit` of them, in the text's order.

    Of equal scores the earlier one stays.
    """
    enough = [i for i, score in enumerate(scores) if score >= threshold]
    return sorted(sorted(enough, key=lambda i: -scores[i])[:limit])


def joined(text: str, spans: Sequence[Span]) -> str:
    """The text of some spans, in their order, a blank between two."""
    return " ".join(text[start:end] for start, end in spans)
