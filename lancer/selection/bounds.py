"""Bounds on what the documents of a partly known matrix gain in one step of a selector's greedy loop.

The pure arithmetic below `lancer.selection.lazy`, which says why the bounds are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lancer.selection.arithmetic import column_sums
from lancer.selection.matrix import BoolArray, FloatArray


@dataclass(frozen=True)
class Rule:
    """How a selector compares documents: decay of `lancer.selection.kernel.Utility`, tie rule and rest rule."""

    decay: float | None
    ties: str
    rest: str


class Step:
    """The step after `chosen`: bounds of every open document's key, (gain, own utility); then the first stage decides.

    low, high: (sub-questions, candidates), what cells are worth; they are kept, and `update` follows a change in them.
    """

    def __init__(self, low: FloatArray, high: FloatArray, chosen: list[int], rule: Rule) -> None:
        self._low, self._high, self._chosen, self._rule = low, high, chosen, rule
        self._begin()

    def _begin(self) -> None:
        self._least, self._most = _weights(self._low, self._high, self._chosen, self._rule.decay)
        self.loose: BoolArray = (self._least < self._most).ravel()  # sub-questions whose weight chosen ones leave open
        self._gains = [column_sums(terms) for terms in self.terms(slice(None))]
        self._owns = [column_sums(self._low), column_sums(self._high)]
        for bounds in self._gains:
            bounds[self._chosen] = -1.0
        self._compare()

    def terms(self, documents: int | slice) -> tuple[FloatArray, FloatArray]:
        """What each cell adds to its document's gain, at least and at most."""
        low, high = self._low[:, documents], self._high[:, documents]
        shape = (-1,) if low.ndim == 1 else (-1, 1)
        least, most = self._least.reshape(shape), self._most.reshape(shape)
        if self._rule.decay is None:
            return np.maximum(low - most, 0.0), np.maximum(high - least, 0.0)
        return low * least, high * most

    def update(self, document: int) -> None:
        """A cell of the document is another one now."""
        if document in self._chosen:
            self._begin()
            return
        for bounds, terms in zip(self._gains, self.terms(document), strict=True):
            bounds[document] = _sum(terms)
        for bounds, terms in zip(self._owns, (self._low[:, document], self._high[:, document]), strict=True):
            bounds[document] = _sum(terms)
        if not self.resting and self._gains[1].max() <= 0.0:
            self._compare()

    def highest(self) -> int:
        """The open document with the highest upper bound; -1 when there is none."""
        return self._top(self._key[1])

    def is_certain(self, document: int) -> bool:
        """Whether it comes before every other open document in every completion."""
        low, high = self._key
        # Where ties and rest are one rule, a gain of 0 is compared like any other; else it might be the rest rule's.
        if not self.resting and self._rule.ties != self._rule.rest and low[0][document] <= 0.0:
            return False
        gain, high[0][document] = high[0][document], -1.0
        second = self._top(high)
        high[0][document] = gain
        if second < 0:
            return True
        return (low[0][document], low[1][document], -document) > (high[0][second], high[1][second], -second)

    def _compare(self) -> None:
        """What is compared: gain and tie rule or, when no gain can be positive any more, the rest rule alone."""
        self.resting = not (self._gains[1] > 0.0).any()
        nothing = np.zeros(self._low.shape[1])
        nothing[self._chosen] = -1.0
        by_own = (self._rule.rest if self.resting else self._rule.ties) == "own"
        gains = [nothing, nothing] if self.resting else self._gains
        owns = self._owns if by_own else [nothing, nothing]
        self._key = (gains[0], owns[0]), (gains[1], owns[1])

    def _top(self, key: tuple[FloatArray, FloatArray]) -> int:
        rows = np.flatnonzero(key[0] == key[0].max())
        if key[0][rows[0]] < 0.0:
            return -1
        if len(rows) > 1:
            rows = rows[key[1][rows] == key[1][rows].max()]
        return int(rows[0])


def _weights(
    low: FloatArray, high: FloatArray, chosen: list[int], decay: float | None
) -> tuple[FloatArray, FloatArray]:
    """(sub-questions, 1) twice: the least and the most that a sub-question weighs, or that is the best of it so far."""
    least = most = np.full((len(low), 1), 0.0 if decay is None else 1.0)
    for document in chosen:
        lows, highs = low[:, document, np.newaxis], high[:, document, np.newaxis]
        if decay is None:
            least, most = np.maximum(least, lows), np.maximum(most, highs)
        else:
            least, most = least * (1.0 - decay * highs), most * (1.0 - decay * lows)
    return least, most


def _sum(terms: FloatArray) -> float:
    """One after the other, as `column_sums` adds; numpy's own sum of a single column does not."""
    total = 0.0
    for term in terms.tolist():
        total += term
    return total
