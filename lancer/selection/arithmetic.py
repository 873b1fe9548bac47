"""Sums and orders that are the same on every machine and in every batch."""

from __future__ import annotations

import numpy as np

from lancer.selection.matrix import FloatArray, IntArray


def column_sums(columns: FloatArray) -> FloatArray:
    """(sub-questions, candidates) -> one sum per candidate, added from the first sub-question to the last.

    The candidates lie along the last, contiguous axis, so numpy adds whole rows in turn: no pairwise summation and no
    BLAS, whose order depends on the machine. Candidates with equal values get equal sums. A single candidate's values
    are one contiguous row to numpy, which it would add in pairs; what is accumulated is added in turn.
    """
    if columns.shape[0] and columns.shape[1] == 1:
        in_turn: FloatArray = np.add.accumulate(columns, axis=0)[-1]
        return in_turn
    sums: FloatArray = np.add.reduce(np.ascontiguousarray(columns), axis=0)
    return sums


def descending(scores: FloatArray) -> IntArray:
    """Rows by falling score, ties in first-stage order."""
    order: IntArray = np.argsort(-scores, kind="stable")
    return order
