"""`greedy-sum(tau)`: the sum over sub-questions of the best rating among the chosen (LANCER, "greedy-sum")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lancer.selection.greedy import Greedy
from lancer.selection.kernel import Utility
from lancer.selection.matrix import BoolArray, CoverageMatrix
from lancer.selection.parameters import tau_parameter


@dataclass(frozen=True, kw_only=True, repr=False)
class GreedySum(Greedy):
    """Utility of a set: the sum over sub-questions of the highest value; values under tau count 0."""

    name: ClassVar[str] = "greedy-sum"
    tau: float = tau_parameter(1.0)

    def covered(self, matrix: CoverageMatrix) -> BoolArray:
        return matrix.covered(self.tau)

    def utility(self, matrix: CoverageMatrix) -> Utility:
        return Utility(np.where(self.covered(matrix), matrix.filled, 0.0).T, decay=None)
