"""`xquad(lambda)`: explicit query aspect diversification (Santos, Macdonald and Ounis, "Exploiting query reformulations
for web search result diversification", 2010).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lancer.selection.arithmetic import column_sums
from lancer.selection.base import Selector
from lancer.selection.matrix import CoverageMatrix, IntArray
from lancer.selection.parameters import Number, parameter
from lancer.selection.relevance import relevance


@dataclass(frozen=True, kw_only=True, repr=False)
class XQuAD(Selector):
    """Takes the highest (1 - lambda) * relevance + lambda * (mean over sub-questions of m * prod(1 - m of the chosen)).

    m is the probability, or the rating / 5. lambda 0 is relevance only.
    """

    name: ClassVar[str] = "xquad"
    lambda_: float = parameter(0.5, Number(0, 1))

    def order(self, matrix: CoverageMatrix) -> IntArray:
        columns = np.ascontiguousarray(matrix.unit.T)
        uncovered = np.full((matrix.sub_questions, 1), 1.0 / max(matrix.sub_questions, 1))
        score = (1.0 - self.lambda_) * relevance(matrix)
        order = np.empty(matrix.candidates, dtype=np.int64)
        for position in range(matrix.candidates):
            worth = score + self.lambda_ * column_sums(columns * uncovered)
            worth[order[:position]] = -np.inf
            best = order[position] = worth.argmax()
            uncovered = uncovered * (1.0 - columns[:, best : best + 1])
        return order
