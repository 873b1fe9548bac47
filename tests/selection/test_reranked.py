from __future__ import annotations

import numpy as np
import pytest

from lancer.schema import Scale
from lancer.selection import CoverageMatrix, parse_selector
from lancer.selection.reranked import select_reranked
from lancer.selection.table import SELECTORS


def matrix(rows: list[list[float]], scale: Scale = Scale.probability, **fields: object) -> CoverageMatrix:
    return CoverageMatrix(np.array(rows, dtype=np.float64), scale, **fields)  # type: ignore[arg-type]


def order(spec: str, rows: list[list[float]], reranked: list[int], kept: int | None = None) -> list[int]:
    chosen = select_reranked(parse_selector(spec), matrix(rows), reranked, len(reranked) if kept is None else kept)
    return chosen.order


TIED = [[0.5, 0.0], [0.0, 0.5], [0.5, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sum(tau=0)", [2, 1, 0, 3]),
        ("max", [2, 1, 0, 3]),
        ("greedy-coverage(tau=0.5)", [2, 1, 0, 3]),
        ("greedy-coverage(tau=0.5,ties=second,rest=second)", [2, 1, 3, 0]),
        ("greedy-coverage(tau=0.5,ties=first,rest=first)", [0, 1, 2, 3]),
        ("greedy-coverage(tau=0.5,ties=second,rest=first)", [2, 1, 0, 3]),
    ],
)
def test_ties_are_broken_by_the_new_order_and_the_greedy_words_name_both(spec: str, expected: list[int]) -> None:
    assert order(spec, TIED, [3, 2, 1, 0]) == expected


@pytest.mark.parametrize("name", SELECTORS)
def test_what_was_not_kept_stays_behind_in_its_order(name: str) -> None:
    rows = np.random.default_rng(1).integers(0, 6, (6, 3))
    reranked = [4, 2, 5, 0, 3, 1]
    selection = select_reranked(parse_selector(name), matrix(rows.tolist(), Scale.rating), reranked, 3)
    assert selection.order[3:] == [0, 3, 1]
    assert sorted(selection.order[:3]) == [2, 4, 5]
    assert selection.covers[3:] == [[], [], []]


@pytest.mark.parametrize("name", SELECTORS)
def test_the_first_stages_own_order_changes_nothing(name: str) -> None:
    rows = np.random.default_rng(2).integers(0, 6, (6, 3))
    plain = parse_selector(name).select(matrix(rows.tolist(), Scale.rating))
    assert select_reranked(parse_selector(name), matrix(rows.tolist(), Scale.rating), list(range(6)), 6) == plain


def test_nothing_kept_is_the_order_itself() -> None:
    selection = select_reranked(parse_selector("sum(tau=0)"), matrix(TIED), [3, 1, 0, 2], 0)
    assert selection.order == [3, 1, 0, 2]
    assert selection.uncovered == [0, 1]


def test_an_own_second_order_and_token_counts_go_with_their_rows() -> None:
    values = matrix(TIED, second_order=[0, 1, 2, 3], token_counts=[9, 1, 1, 1])
    selection = select_reranked(
        parse_selector("greedy-coverage(tau=0.5,ties=second,rest=second,budget=2)"),
        values,
        [3, 2, 1, 0],
        4,
    )
    assert selection.order == [1, 2, 0, 3]  # document 0 does not fit into two tokens
