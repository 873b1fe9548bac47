"""`greedy-alpha(alpha,tau)`: the gain of alpha-nDCG (LANCER, "greedy-alpha"; Clarke et al., "Novelty and diversity in
information retrieval evaluation", 2008).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lancer.selection.greedy import Greedy
from lancer.selection.kernel import Utility
from lancer.selection.matrix import BoolArray, CoverageMatrix
from lancer.selection.parameters import Number, parameter, tau_parameter


@dataclass(frozen=True, kw_only=True, repr=False)
class GreedyAlpha(Greedy):
    """Gain of a document: over the sub-questions with r >= tau, (1 - alpha)^(times it is covered already).

    With alpha below 1 a document that covers anything always gains; `rest` orders those that cover nothing.
    """

    name: ClassVar[str] = "greedy-alpha"
    alpha: float = parameter(0.5, Number(0, 1))
    tau: float = tau_parameter(3.0)

    def covered(self, matrix: CoverageMatrix) -> BoolArray:
        return matrix.covered(self.tau)

    def utility(self, matrix: CoverageMatrix) -> Utility:
        return Utility(self.covered(matrix).T.astype(float), decay=self.alpha)
