"""Which sentences of a document stay, and the text they make (papers/002, section 17.7.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def runs(n: int, fits: Callable[[range], bool]) -> list[range]:
    """0 to n - 1 in runs, each as long as fits; what does not even fit alone is a run of its own.

    What is a part of a run that fits must fit too.
    """
    found = []
    start = 0
    while start < n:
        stop, most = start + 1, n
        while stop < most:
            middle = (stop + most + 1) // 2
            if fits(range(start, middle)):
                stop = middle
            else:
                most = middle - 1
        found.append(range(start, stop))
        start = stop
    return found
