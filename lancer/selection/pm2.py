"""`pm2(lambda)`: proportional seats for the sub-questions (Dang and Croft, "Diversity by proportionality", 2012)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lancer.selection.arithmetic import column_sums
from lancer.selection.base import Selector
from lancer.selection.matrix import CoverageMatrix, IntArray
from lancer.selection.parameters import Number, parameter


@dataclass(frozen=True, kw_only=True, repr=False)
class PM2(Selector):
    """Each rank is a seat, given by Sainte-Laguë to the sub-question with the highest quotient votes / (2 seats + 1).

    The seat goes to the document with the highest lambda * quotient * m of that sub-question plus (1 - lambda) * the
    same sum over the others, and counts for each sub-question by its share of the document's m. m is the probability,
    or the rating / 5; all sub-questions have the same votes. A sub-question that no remaining document answers gets no
    seat. Documents that answer nothing come last.
    """

    name: ClassVar[str] = "pm2"
    lambda_: float = parameter(0.5, Number(0, 1))

    def order(self, matrix: CoverageMatrix) -> IntArray:
        columns = np.ascontiguousarray(matrix.unit.T)
        total = column_sums(columns)
        seats = np.zeros(matrix.sub_questions)
        remaining = total > 0.0
        order: list[int] = []
        while remaining.any():
            quotients = 1.0 / (2.0 * seats + 1.0)
            answerable = (columns[:, remaining] > 0.0).any(axis=1)
            winner = int(np.where(answerable, quotients, -1.0).argmax())
            share = np.full((matrix.sub_questions, 1), 1.0 - self.lambda_)
            share[winner] = self.lambda_
            worth = np.where(remaining, column_sums(columns * quotients[:, np.newaxis] * share), -1.0)
            best = int(worth.argmax())
            seats += columns[:, best] / total[best]
            remaining[best] = False
            order.append(best)
        return np.array(order + np.flatnonzero(total <= 0.0).tolist(), dtype=np.int64)
