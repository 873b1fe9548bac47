"""`sum(tau)`: documents by the sum of their ratings that reach tau (LANCER, "Summation")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lancer.selection.arithmetic import column_sums, descending
from lancer.selection.base import Selector
from lancer.selection.matrix import BoolArray, CoverageMatrix, IntArray
from lancer.selection.parameters import tau_parameter


@dataclass(frozen=True, kw_only=True, repr=False)
class Sum(Selector):
    """Score of a document: the sum over sub-questions of r where r >= tau."""

    name: ClassVar[str] = "sum"
    tau: float = tau_parameter(1.0)

    def covered(self, matrix: CoverageMatrix) -> BoolArray:
        return matrix.covered(self.tau)

    def order(self, matrix: CoverageMatrix) -> IntArray:
        return descending(column_sums(np.where(self.covered(matrix), matrix.filled, 0.0).T))
