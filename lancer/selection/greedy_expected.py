"""`greedy-expected`: the expected number of covered sub-questions, from probabilities and without a threshold.

The utility is that of Agrawal et al., "Diversifying search results", 2009 (IA-Select), with equal sub-questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lancer.selection.greedy import Greedy
from lancer.selection.kernel import Utility
from lancer.selection.matrix import CoverageMatrix


@dataclass(frozen=True, kw_only=True, repr=False)
class GreedyExpected(Greedy):
    """Utility of a set: the sum over sub-questions of 1 - prod(1 - p); p is the probability, or the rating / 5."""

    name: ClassVar[str] = "greedy-expected"

    def utility(self, matrix: CoverageMatrix) -> Utility:
        return Utility(matrix.unit.T, decay=1.0)
