"""The lazy top k against selecting on the full matrix."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lancer.errors import UsageError
from lancer.schema import Scale
from lancer.selection import SELECTORS, CoverageMatrix, Selector, parse_selector
from lancer.selection.lazy import EXACT, Cell, Lazy
from lancer.selection.matrix import FloatArray

SPECS = [
    "sum(tau=1)",
    "sum(tau=0)",
    "sum(tau=4)",
    "greedy-sum(tau=1)",
    "greedy-sum(tau=3,ties=first)",
    "greedy-sum(tau=0,rest=first)",
    "greedy-coverage(tau=4)",
    "greedy-coverage(tau=3,ties=first,rest=first)",
    "greedy-coverage(tau=2,rest=first)",
    "greedy-coverage(tau=3,ties=first,strict=true)",
    "greedy-alpha(alpha=0.5,tau=4)",
    "greedy-alpha(alpha=0.3,tau=1,rest=first)",
    "greedy-alpha(alpha=1,tau=3,ties=first)",
    "greedy-expected",
    "greedy-expected(ties=first,rest=own)",
]
shapes = st.tuples(st.integers(0, 9), st.integers(0, 5))
# Few values, so that ties are everywhere, and thirds, so that sums are rounded.
rating = st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 1 / 3, 10 / 3, math.nan])
ratings = arrays.arrays(np.float64, shapes, elements=rating)


def top(selector: Selector, values: FloatArray, k: int) -> list[int]:
    return selector.select(CoverageMatrix(values, Scale.rating)).order[:k]


def lazy_for(selector: Selector, k: int, values: FloatArray, seed: int) -> tuple[Lazy, np.random.Generator]:
    """Nothing known, and an estimate that has little to do with the values."""
    chance = np.random.default_rng(seed)
    noise = chance.random(values.shape)
    expected = 5.0 * noise if seed % 2 else np.clip(np.nan_to_num(values) + noise - 0.5, 0.0, 5.0)
    low, high = np.zeros_like(values), np.full_like(values, 5.0)
    return Lazy(selector, k, low, high, expected, scale=Scale.rating), chance


def answers(cells: list[Cell], values: FloatArray) -> list[tuple[Cell, float]]:
    """What has no value counts 0."""
    return [(cell, float(np.nan_to_num(values[cell]))) for cell in cells]


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=50)
@given(values=ratings, k=st.integers(1, 10), batch=st.integers(1, 12), seed=st.integers(0, 1000))
def test_the_top_k_is_that_of_the_full_matrix_and_no_cell_is_asked_twice(
    spec: str, values: FloatArray, k: int, batch: int, seed: int
) -> None:
    selector = parse_selector(spec)
    expected = top(selector, values, k)
    lazy, _ = lazy_for(selector, k, values, seed)
    asked: set[Cell] = set()
    while not lazy.decided:
        assert lazy.chosen == expected[: len(lazy.chosen)]
        cells = lazy.ask(batch)
        assert 0 < len(cells) <= batch
        assert not asked & set(cells)
        asked |= set(cells)
        assert len(asked) <= values.size
        lazy.tell(answers(cells, values))
    assert lazy.chosen == expected
    assert lazy.ask(batch) == []


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=50)
@given(values=ratings, k=st.integers(1, 9), share=st.floats(0, 1), seed=st.integers(0, 1000))
def test_what_is_decided_holds_for_every_completion_of_the_cells(
    spec: str, values: FloatArray, k: int, share: float, seed: int
) -> None:
    """Cells are told in random order here, so that documents are decided while cells of chosen ones are open."""
    selector = parse_selector(spec)
    lazy, chance = lazy_for(selector, k, values, seed)
    known = chance.random(values.shape) < share
    cells: list[Cell] = [(int(i), int(j)) for i, j in np.argwhere(known)]
    lazy.tell(answers(cells, values))
    lazy.tell([])
    for low in (0.0, 5.0, None):
        other = chance.choice([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], values.shape) if low is None else low
        completed = np.where(known, values, other)
        assert top(selector, completed, len(lazy.chosen)) == lazy.chosen


@settings(max_examples=50)
@given(values=ratings, k=st.integers(1, 6), seed=st.integers(0, 1000))
def test_narrow_bounds_are_exact_when_they_hold(values: FloatArray, k: int, seed: int) -> None:
    selector = parse_selector("greedy-coverage(tau=3)")
    values, chance = np.nan_to_num(values), np.random.default_rng(seed)
    low = np.maximum(values - 3 * chance.random(values.shape), 0.0)
    high = np.minimum(values + 3 * chance.random(values.shape), 5.0)
    lazy = Lazy(selector, k, low, high, (low + high) / 2, scale=Scale.rating)
    wide, _ = lazy_for(selector, k, values, seed)
    for each in (lazy, wide):
        while not each.decided:
            each.tell(answers(each.ask(1), values))
    assert lazy.chosen == wide.chosen == top(selector, values, k)


def test_by_hand() -> None:
    """Three documents, two sub-questions, tau 4: a covers both, so b and c are compared by their own utility."""
    selector = parse_selector("greedy-coverage(tau=4)")
    values = np.array([[5.0, 4.0], [0.0, 4.0], [0.0, 0.0]])
    lazy = Lazy(selector, 1, np.zeros((3, 2)), np.full((3, 2), 5.0), values, scale=Scale.rating)
    assert lazy.ask(9) == [(0, 1), (0, 0)], "every document may cover both; the first needs no more than to do so"
    lazy.tell([((0, 1), 4.0), ((0, 0), 5.0)])
    assert lazy.decided
    two = Lazy(selector, 2, np.zeros((3, 2)), np.full((3, 2), 5.0), values, scale=Scale.rating)
    two.tell([((0, 1), 4.0), ((0, 0), 5.0)])
    assert two.chosen == [0]
    two.tell([((1, 0), 0.0)])
    assert not two.decided, "c may still cover both"
    two.tell([((2, 0), 0.0)])
    assert not two.decided, "b may cover none, and c one"
    two.tell([((2, 1), 0.0)])
    assert two.decided, "b covers one or none, c none, and b is first"
    assert two.chosen == [0, 1]


def test_nothing_is_asked_when_the_rest_follows_the_first_stage() -> None:
    selector = parse_selector("greedy-coverage(tau=4,rest=first)")
    values = np.zeros((50, 1))
    values[3] = 5.0
    lazy = Lazy(selector, 10, np.zeros((50, 1)), np.full((50, 1), 5.0), values, scale=Scale.rating)
    asked = []
    while not lazy.decided:
        cells = lazy.ask(1)
        asked += cells
        lazy.tell(answers(cells, values))
    assert asked == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert lazy.chosen == [3, 0, 1, 2, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("name", sorted(set(SELECTORS) - set(EXACT)))
def test_other_selectors_are_refused(name: str) -> None:
    cells = np.zeros((2, 2))
    with pytest.raises(UsageError, match=f"selector '?{name}.*cannot be decided .*greedy-alpha"):
        Lazy(parse_selector(name), 1, cells, cells, cells, scale=Scale.rating)


@pytest.mark.parametrize("spec", ["greedy-sum(tau=1,budget=100)", "greedy-coverage(tau=3,rest=second)"])
def test_what_lazy_judging_has_not_is_refused(spec: str) -> None:
    cells = np.zeros((2, 2))
    with pytest.raises(UsageError, match=r"token_counts|second_order"):
        Lazy(parse_selector(spec), 1, cells, cells, cells, scale=Scale.rating)
