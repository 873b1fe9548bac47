"""`rrf(k)`: reciprocal rank fusion of one ranking per sub-question (LANCER, "Reciprocal Rank Fusion").

Method: Cormack, Clarke and Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual rank learning
methods", 2009.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lancer.selection.arithmetic import descending
from lancer.selection.base import Selector
from lancer.selection.matrix import CoverageMatrix, FloatArray, IntArray
from lancer.selection.parameters import Whole, parameter


@dataclass(frozen=True, kw_only=True, repr=False)
class ReciprocalRankFusion(Selector):
    """Score of a document: the sum over sub-questions of 1 / (k + rank).

    Ranks start at 1 and equal values share the lowest (1, 2, 2, 4); a missing value adds 0.
    """

    name: ClassVar[str] = "rrf"
    k: int = parameter(60, Whole(0))

    def order(self, matrix: CoverageMatrix) -> IntArray:
        parts = np.zeros(matrix.values.shape)
        for column in range(matrix.sub_questions):
            present = ~np.isnan(matrix.values[:, column])
            parts[present, column] = 1.0 / (float(self.k) + _ranks(matrix.values[present, column]))
        # fsum rounds once: documents whose ranks are the same in another order of sub-questions tie exactly.
        return descending(np.array([math.fsum(row) for row in parts], dtype=np.float64))


def _ranks(values: FloatArray) -> IntArray:
    ranks: IntArray = 1 + np.searchsorted(np.sort(-values), -values, side="left")
    return ranks
