"""The inner loop of greedy selection, in numpy, and in compiled code once a process has selected enough.

Two forms of utility make up all greedy selectors, over columns c[j, d] (sub-question j, document d):

- discounted: gain of d = sum_j w[j] * c[j, d], and taking d sets w[j] *= 1 - decay * c[j, d]. With c = 0 or 1, decay 1
  is coverage and decay alpha is alpha-nDCG's gain; with c = probability, decay 1 is the expected coverage.
- best: gain of d = sum_j max(0, c[j, d] - b[j]), b the highest value among the chosen: the sum of the best ratings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lancer.selection.arithmetic import column_sums
from lancer.selection.compiled import compiled_steps
from lancer.selection.matrix import FloatArray, IntArray

# Importing numba and compiling the loop takes 2 s, a step of 100 x 15 in numpy 15 to 20 microseconds.
COMPILE_AFTER_STEPS: Final = 100_000

_NO_START: Final[IntArray] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Utility:
    """What documents are worth. columns: (sub-questions, candidates) float64, contiguous; decay None = best form."""

    columns: FloatArray
    decay: float | None

    def permuted(self, rows: IntArray) -> Utility:
        """The same with the candidates in another order."""
        return replace(self, columns=np.ascontiguousarray(self.columns[:, rows]))


class _Progress:
    """How many steps this process has taken."""

    steps = 0


def take(
    utility: Utility, *, costs: FloatArray | None = None, budget: float = np.inf, start: IntArray = _NO_START
) -> tuple[IntArray, float]:
    """Documents in the order taken while any gains, after those of `start`; and the worth of all of them together.

    The highest gain per cost among the documents that the rest of the budget admits; the first in case of ties.
    """
    columns = utility.columns
    if costs is None:
        costs = np.ones(columns.shape[1])
    discounted, decay = utility.decay is not None, utility.decay or 0.0
    steps = compiled_steps() if _Progress.steps >= COMPILE_AFTER_STEPS else None
    order, worth = (steps or numpy_steps)(columns, discounted, decay, costs, budget, start)
    _Progress.steps += len(order)
    return order, float(worth)


def numpy_steps(
    columns: FloatArray, discounted: bool, decay: float, costs: FloatArray, budget: float, start: IntArray
) -> tuple[IntArray, float]:
    """`take` for a small number of queries; equal to the compiled loop to the last bit."""
    questions, documents = columns.shape
    state = np.full((questions, 1), 1.0 if discounted else 0.0)
    costs = costs.copy()
    order: list[int] = []
    worth = 0.0
    while len(order) < documents:
        gains = column_sums(columns * state if discounted else np.maximum(columns - state, 0.0))
        if len(order) < len(start):
            best = int(start[len(order)])
        else:
            value = np.where(costs <= budget, gains / costs, 0.0)
            best = int(value.argmax())
            if value[best] <= 0.0:
                break
        worth += float(gains[best])
        budget -= float(costs[best])
        costs[best] = np.inf  # taken: nothing to gain per cost
        order.append(best)
        taken = columns[:, best : best + 1]
        state = state * (1.0 - decay * taken) if discounted else np.maximum(state, taken)
    return np.array(order, dtype=np.int64), worth
