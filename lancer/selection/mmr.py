"""`mmr(lambda)`: maximal marginal relevance (Carbonell and Goldstein, 1998)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lancer.selection.arithmetic import column_sums
from lancer.selection.base import Selector
from lancer.selection.matrix import CoverageMatrix, FloatArray, IntArray
from lancer.selection.parameters import Number, parameter
from lancer.selection.relevance import relevance


@dataclass(frozen=True, kw_only=True, repr=False)
class MaximalMarginalRelevance(Selector):
    """Takes the highest lambda * relevance - (1 - lambda) * (highest cosine with a chosen document).

    lambda 1 is relevance only. The cosine is that of the embeddings where the matrix has them, else of its rows.
    """

    name: ClassVar[str] = "mmr"
    lambda_: float = parameter(0.5, Number(0, 1))

    def order(self, matrix: CoverageMatrix) -> IntArray:
        vectors = _normalised(matrix.filled if matrix.embeddings is None else matrix.embeddings)
        score = self.lambda_ * relevance(matrix)
        similarity = np.full(matrix.candidates, -np.inf)
        order = np.empty(matrix.candidates, dtype=np.int64)
        for position in range(matrix.candidates):
            worth = score - (1.0 - self.lambda_) * similarity if position else score.copy()
            worth[order[:position]] = -np.inf
            best = order[position] = worth.argmax()
            similarity = np.maximum(similarity, column_sums(vectors * vectors[:, best : best + 1]))
        return order


def _normalised(rows: FloatArray) -> FloatArray:
    """(dimensions, candidates), each of length 1; a row of zeros stays so and resembles nothing."""
    columns = np.ascontiguousarray(rows.T)
    lengths = np.sqrt(column_sums(columns * columns))
    unit: FloatArray = columns / np.where(lengths > 0.0, lengths, 1.0)
    return unit
