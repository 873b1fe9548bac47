"""What holds for every selector and every matrix."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lancer.schema import Scale
from lancer.selection import SELECTORS, CoverageMatrix, Selection, parse_selector
from lancer.selection.matrix import FloatArray

shapes = st.tuples(st.integers(0, 12), st.integers(0, 8))
rating = st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, math.nan])
ratings = arrays.arrays(np.float64, shapes, elements=rating)
SPECS = [
    *sorted(SELECTORS),
    "greedy-coverage(ties=second,rest=second)",
    "greedy-alpha(ties=first,budget=100)",
    "greedy-sum(budget=60,rest=first)",
    "greedy-expected(budget=60,ties=second)",
]


def select(spec: str, values: FloatArray, seed: int = 0) -> Selection:
    chance = np.random.default_rng(seed)
    matrix = CoverageMatrix(
        values,
        Scale.rating,
        second_order=chance.permutation(len(values)),
        token_counts=chance.integers(0, 60, len(values)),
        first_stage_scores=np.sort(chance.random(len(values)))[::-1],
    )
    return parse_selector(spec).select(matrix)


@pytest.mark.parametrize("spec", SPECS)
@given(values=ratings, seed=st.integers(0, 9))
def test_every_ranking_is_a_permutation_with_a_consistent_explanation(spec: str, values: FloatArray, seed: int) -> None:
    selection = select(spec, values, seed)
    assert sorted(selection.order) == list(range(len(values)))
    assert len(selection.covers) == len(values)
    named = [column for columns in selection.covers for column in columns] + selection.uncovered
    assert sorted(named) == list(range(values.shape[1]))
    assert select(spec, values.copy(), seed) == selection


@pytest.mark.parametrize("name", sorted(SELECTORS))
@given(values=ratings, data=st.data())
def test_exchanging_two_equal_candidates_exchanges_only_those(
    name: str, values: FloatArray, data: st.DataObject
) -> None:
    if len(values) < 2:
        return
    a, b = data.draw(st.permutations(range(len(values))))[:2]
    values[b] = values[a]
    ids = list(range(len(values)))
    exchanged = [b if i == a else a if i == b else i for i in ids]  # candidate at each row
    before = [ids[row] for row in select(name, values).order]
    after = [exchanged[row] for row in select(name, values[exchanged]).order]
    assert after == [b if d == a else a if d == b else d for d in before]
    assert before.index(min(a, b)) < before.index(max(a, b))  # the first stage decides between equals


@pytest.mark.parametrize("name", ["sum", "max", "rrf"])
@given(values=ratings, data=st.data())
def test_scores_do_not_depend_on_the_place_of_other_candidates(
    name: str, values: FloatArray, data: st.DataObject
) -> None:
    """Moving candidates changes only the order among those with equal scores."""
    moved = data.draw(st.permutations(range(len(values))))
    rows = [tuple(np.nan_to_num(values[row], nan=-1.0)) for row in select(name, values).order]
    again = [tuple(np.nan_to_num(values[moved[row]], nan=-1.0)) for row in select(name, values[moved]).order]
    score = {"sum": lambda r: sum(v for v in r if v >= 1), "max": lambda r: max([0.0, *r])}.get(name)
    if score is None:
        assert sorted(rows) == sorted(again)
    else:
        assert [score(r) for r in rows] == [score(r) for r in again] == sorted(map(score, rows), reverse=True)


@given(arrays.arrays(np.float64, st.tuples(st.integers(1, 8), st.integers(1, 7)), elements=rating), st.integers(1, 4))
def test_greedy_coverage_is_near_the_best_set(values: FloatArray, k: int) -> None:
    """Nemhauser, Wolsey and Fisher, 1978: at least 1 - 1/e of the best k documents."""
    selection = select("greedy-coverage(tau=3)", values)
    got = sum(len(columns) for columns in selection.covers[:k])
    answers = [set(np.flatnonzero(row >= 3).tolist()) for row in values]
    best = max(len(set().union(*some)) for some in itertools.combinations(answers, min(k, len(answers))))
    assert got >= (1 - 1 / math.e) * best


@given(
    arrays.arrays(np.float64, st.tuples(st.integers(1, 7), st.integers(1, 6)), elements=rating),
    st.integers(1, 80),
    st.integers(0, 99),
)
def test_the_budgeted_form_is_near_the_best_set_that_fits(values: FloatArray, budget: int, seed: int) -> None:
    """Khuller, Moss and Naor, 1999: at least (1 - 1/e) / 2 of the best set within the budget."""
    tokens = np.random.default_rng(seed).integers(1, 60, len(values))
    matrix = CoverageMatrix(values, Scale.rating, token_counts=tokens)
    order = parse_selector(f"greedy-coverage(tau=3,budget={budget})").select(matrix).order
    answers = [set(np.flatnonzero(row >= 3).tolist()) for row in values]
    spent = np.cumsum(tokens[order])
    got = len(set().union(*(answers[d] for d, total in zip(order, spent, strict=True) if total <= budget)))
    best = max(
        len(set().union(*(answers[d] for d in some)))
        for size in range(len(values) + 1)
        for some in itertools.combinations(range(len(values)), size)
        if tokens[list(some)].sum() <= budget
    )
    assert got >= (1 - 1 / math.e) / 2 * best
