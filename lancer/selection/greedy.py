"""Greedy selection (LANCER, "Greedy Utility Selection"; DES): the document with the highest gain over those chosen.

Equal gain: `ties=own` prefers the higher utility of the document alone, then the first-stage order; `ties=first` the
first-stage order; `ties=second` the second order of the matrix (DES: the bi-encoder's). When nothing gains any more,
the rest follows by one of the same three orders (`rest`).

`budget` fills a context of that many tokens first: by gain per token, or starting from the best single document where
that alone is worth more than all those (Khuller, Moss and Naor, "The budgeted maximum coverage problem", 1999). Then
the greedy goes on without the limit, so that the ranking is complete.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np

from lancer.selection.arithmetic import column_sums, descending
from lancer.selection.base import Selector
from lancer.selection.kernel import Utility, take
from lancer.selection.matrix import CoverageMatrix, FloatArray, IntArray
from lancer.selection.parameters import Choice, Whole, parameter

_ORDERS: Final = Choice(("own", "first", "second"))
_NONE: Final[IntArray] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True, repr=False)
class Greedy(Selector):
    """The loop and its options; a subclass says what a set of documents is worth."""

    ties: str = parameter("own", _ORDERS, option=True)
    rest: str = parameter("own", _ORDERS, option=True)
    budget: int | None = parameter(None, Whole(1), option=True)

    @abstractmethod
    def utility(self, matrix: CoverageMatrix) -> Utility:
        """The worth of documents, rows in first-stage order."""

    @property
    def needs(self) -> tuple[str, ...]:
        second = ("second_order",) if "second" in (self.ties, self.rest) else ()
        return second if self.budget is None else (*second, "token_counts")

    def order(self, matrix: CoverageMatrix) -> IntArray:
        utility = self.utility(matrix)
        by_own = descending(column_sums(utility.columns))
        first = _order_of(self.ties, by_own, matrix)
        utility = utility.permuted(first)  # then the first of several highest gains is the one to take
        start = _NONE
        if self.budget is not None and matrix.token_counts is not None:
            # A document without tokens costs one, so that the gain per token stays finite.
            costs = np.maximum(matrix.token_counts[first], 1).astype(np.float64)
            start = _within(utility, costs, float(self.budget))
        chosen = first[take(utility, start=start)[0]]
        rest = _order_of(self.rest, by_own, matrix)
        left = np.ones(matrix.candidates, dtype=np.bool_)
        left[chosen] = False
        return np.concatenate([chosen, rest[left[rest]]])


def _order_of(word: str, by_own: IntArray, matrix: CoverageMatrix) -> IntArray:
    if word == "second" and matrix.second_order is not None:
        return matrix.second_order
    if word == "own":
        return by_own
    return np.arange(matrix.candidates) if matrix.first_order is None else matrix.first_order


def _within(utility: Utility, costs: FloatArray, budget: float) -> IntArray:
    chosen, worth = take(utility, costs=costs, budget=budget)
    alone = np.where(costs <= budget, column_sums(utility.columns), 0.0)
    if alone.max(initial=0.0) <= worth:
        return chosen
    best = np.array([alone.argmax()], dtype=np.int64)
    return take(utility, costs=costs, budget=budget, start=best)[0]
