"""`greedy-coverage(tau)`: most sub-questions not yet covered (LANCER, "greedy-cov"; DES with strict=true).

DES: `greedy-coverage(tau=0.3,ties=second,rest=second,strict=true)` on probabilities: entries strictly above .3 cover,
ties and remainder in the bi-encoder's order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lancer.errors import PlanError
from lancer.schema import Scale
from lancer.selection.greedy import Greedy
from lancer.selection.kernel import Utility
from lancer.selection.matrix import BoolArray, CoverageMatrix
from lancer.selection.parameters import Flag, parameter, tau_parameter


@dataclass(frozen=True, kw_only=True, repr=False)
class GreedyCoverage(Greedy):
    """Utility of a set: the number of sub-questions with some value >= tau (> tau if strict)."""

    name: ClassVar[str] = "greedy-coverage"
    tau: float = tau_parameter(3.0)
    strict: bool = parameter(False, Flag(), option=True)

    def check(self, scale: Scale) -> None:
        super().check(scale)
        if self.strict and self.tau == scale.maximum:
            raise PlanError(
                f"selector {self!r}: no value of the scale {scale.value!r} is above its maximum {self.tau:g}"
            )

    def covered(self, matrix: CoverageMatrix) -> BoolArray:
        return matrix.covered(self.tau, strict=self.strict)

    def utility(self, matrix: CoverageMatrix) -> Utility:
        return Utility(np.ascontiguousarray(self.covered(matrix).T, dtype=np.float64), decay=1.0)
