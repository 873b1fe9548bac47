"""Selection after reranking: the kept candidates alone, in their new order; the others follow as they were.

Rows that are tied are taken in the new order by every selector. In the words of the greedy ones it is `second`, and
`first` is still the first stage's (DES: ties and remainder by the bi-encoder).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lancer.selection.base import Selector
from lancer.selection.matrix import CoverageMatrix, Selection


def select_reranked(selector: Selector, matrix: CoverageMatrix, order: Sequence[int], kept: int) -> Selection:
    """`matrix` has its rows in first-stage order; `order` names all of them, best first, and `kept` so many of it.

    PlanError as `Selector.select`. A second order that the matrix has already stays.
    """
    rows = np.array(order[:kept], dtype=np.int64)
    selection = selector.select(reordered(matrix, rows))
    rest = list(order[kept:])
    return replace(
        selection,
        order=[int(rows[i]) for i in selection.order] + rest,
        covers=selection.covers + [[] for _ in rest],
    )


def reordered(matrix: CoverageMatrix, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> CoverageMatrix:
    """Some rows in another order. Without a second order of its own, that order is it."""
    place = {int(row): i for i, row in enumerate(rows)}
    second = (rows if matrix.second_order is None else matrix.second_order).tolist()
    return CoverageMatrix(
        matrix.values[rows],
        matrix.scale,
        second_order=np.array([place[row] for row in second if row in place], dtype=np.int64),
        first_order=np.argsort(rows, kind="stable"),
        token_counts=None if matrix.token_counts is None else matrix.token_counts[rows],
        embeddings=None if matrix.embeddings is None else matrix.embeddings[rows],
    )
