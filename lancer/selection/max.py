"""`max`: documents by the best rating they have for any sub-question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lancer.selection.arithmetic import descending
from lancer.selection.base import Selector
from lancer.selection.matrix import CoverageMatrix, IntArray


@dataclass(frozen=True, kw_only=True, repr=False)
class Max(Selector):
    """Score of a document: the maximum of its values; 0 where there is no sub-question."""

    name: ClassVar[str] = "max"

    def order(self, matrix: CoverageMatrix) -> IntArray:
        return descending(matrix.filled.max(axis=1, initial=0.0))
