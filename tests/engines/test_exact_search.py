"""Exact search equals the definition: every inner product, sorted, ties by row, the same bits for any blocks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from lancer.engines.exact_search import search


def units(seed: int, rows: int, dimensions: int = 48) -> npt.NDArray[np.float32]:
    vectors = np.random.default_rng(seed).normal(size=(rows, dimensions))
    single: npt.NDArray[np.float32] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return single


def by_definition(vectors: npt.NDArray[np.float32], query: npt.NDArray[np.float32], depth: int) -> list[int]:
    products = np.array([np.float32(np.dot(v.astype(np.float64), query.astype(np.float64))) for v in vectors])
    return sorted(range(len(vectors)), key=lambda row: (-products[row], row))[:depth]


@pytest.mark.parametrize("sizes", [(500,), (1, 7, 0, 200, 292), (100,) * 5])
@pytest.mark.parametrize("depth", [1, 10, 499, 1000])
def test_the_best_rows_whatever_the_blocks(sizes: tuple[int, ...], depth: int) -> None:
    vectors = units(1, 500)
    blocks = np.split(vectors, np.cumsum(sizes)[:-1])
    for query in units(2, 5):
        rows, scores = search(blocks, query, depth)
        assert rows.tolist() == by_definition(vectors, query, depth)
        assert (np.diff(scores) <= 0).all()
        whole = search([vectors], query, depth)
        assert (rows.tobytes(), scores.tobytes()) == (whole[0].tobytes(), whole[1].tobytes())


def test_ties_are_in_the_order_of_rows_and_near_ties_are_not_ties() -> None:
    near = units(3, 1)[0]
    vectors = np.concatenate([units(4, 20), [near] * 30, units(5, 20), [near] * 30])
    # Its product with the query is one unit in the last place higher.
    vectors[75] = near * np.float32(1 + 1e-6)
    rows, scores = search(np.array_split(vectors, 7), near, 40)
    assert rows.tolist() == [75, *range(20, 50), *range(70, 75), *range(76, 80)]
    assert scores[0] > scores[1] == scores[-1]


def test_what_is_no_number_is_not_found() -> None:
    vectors = units(6, 10)
    vectors[3, 0] = np.nan
    assert 3 not in search([vectors[:5], vectors[5:]], vectors[0], 10)[0]
    assert search([vectors], np.full(48, np.nan, np.float32), 10)[0].tolist() == []


def test_an_empty_corpus() -> None:
    assert search([], units(1, 1)[0], 5)[0].tolist() == []
    assert search([np.empty((0, 48), np.float32)], units(1, 1)[0], 5)[0].tolist() == []
