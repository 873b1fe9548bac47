"""Exact search by inner product: blocked matrix products and the best `depth` of them, with ties that are fixed.

What a float32 product rounds to depends on the shapes that are multiplied. So the blocks only say which documents come
into question; those are scored again in doubles, which after rounding to float32 depends on the two vectors alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

# More than the float32 product of two unit vectors can be off by (4e-5 at 768 dimensions), so nothing is missed.
SLACK: Final = 2e-4


def search(blocks: Sequence[FloatArray], query: FloatArray, depth: int) -> tuple[IntArray, FloatArray]:
    """Rows with the highest inner products with `query` (dimensions,), best first; equal ones in the order of rows.

    `blocks` are unit vectors, shape (rows, dimensions) each; rows count through all of them. A row that is no number is
    never found.
    """
    rows, rough = np.empty(0, np.int64), np.empty(0, np.float32)
    start = 0
    for block in blocks:
        products = block @ query
        floor = -np.inf if len(rough) < depth else np.partition(rough, -depth)[-depth] - SLACK
        near = np.flatnonzero(products >= floor)  # not true of NaN
        rows, rough = np.concatenate([rows, start + near]), np.concatenate([rough, products[near]])
        if len(rough) > depth:
            kept = rough >= np.partition(rough, -depth)[-depth] - SLACK
            rows, rough = rows[kept], rough[kept]
        start += len(block)
    scores = (_gather(blocks, rows, len(query)).astype(np.float64) @ query.astype(np.float64)).astype(np.float32)
    best = np.lexsort((rows, -scores))[:depth]
    return rows[best], scores[best]


def _gather(blocks: Sequence[FloatArray], rows: IntArray, dimensions: int) -> FloatArray:
    """The vectors of ascending `rows`, shape (rows, dimensions)."""
    ends = np.cumsum([len(block) for block in blocks])
    parts = [np.empty((0, dimensions), np.float32)]
    for block, end in zip(blocks, ends, strict=True):
        first, last = np.searchsorted(rows, (end - len(block), end))
        parts.append(block[rows[first:last] - (end - len(block))])
    return np.concatenate(parts)
