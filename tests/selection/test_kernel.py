"""The greedy loop: numpy, compiled and plain Python agree to the last document."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lancer.schema import Scale
from lancer.selection import CoverageMatrix, kernel, parse_selector
from lancer.selection.compiled import compiled_steps
from lancer.selection.kernel import Utility, numpy_steps, take
from lancer.selection.matrix import FloatArray
from tests.selection import plain

shapes = st.tuples(st.integers(0, 9), st.integers(0, 12))
ratings = arrays.arrays(np.float64, shapes, elements=st.sampled_from([0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]))
probabilities = arrays.arrays(np.float64, shapes, elements=st.floats(0, 1, width=32))


@given(st.one_of(ratings, probabilities), st.data())
def test_compiled_steps_equal_numpy_steps(columns: FloatArray, data: st.DataObject) -> None:
    steps = compiled_steps()
    assert steps is not None
    documents = columns.shape[1]
    discounted = data.draw(st.booleans())
    values = columns / 5.0 if discounted and columns.max(initial=0.0) > 1.0 else columns
    costs = np.array(data.draw(st.lists(st.integers(1, 50), min_size=documents, max_size=documents)), dtype=np.float64)
    budget = data.draw(st.sampled_from([math.inf, 20.0, 100.0]))
    start = np.array(data.draw(st.permutations(range(documents)))[: data.draw(st.integers(0, 2))], dtype=np.int64)
    arguments = (values, discounted, data.draw(st.floats(0, 1)), costs, budget, start)
    expected, compiled = numpy_steps(*arguments), steps(*arguments)
    assert compiled[0].tolist() == expected[0].tolist()
    assert compiled[1] == expected[1]


def test_compiled_steps_equal_numpy_steps_for_one_document_with_many_sub_questions() -> None:
    steps = compiled_steps()
    assert steps is not None
    no_start = np.empty(0, dtype=np.int64)
    arguments = (np.full((8, 1), 0.4), True, 0.5, np.ones(1), math.inf, no_start)
    assert steps(*arguments)[1] == numpy_steps(*arguments)[1] == 3.1999999999999997


@given(ratings, st.sampled_from([0.5, 1.0, 3.0, 4.0]), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_ratings_are_selected_as_the_definitions_say(columns: FloatArray, tau: float, alpha: float) -> None:
    matrix = CoverageMatrix(columns.T, Scale.rating)
    rows = columns.T.tolist()
    assert parse_selector(f"greedy-sum(tau={tau})").select(matrix).order == plain.greedy_sum(rows, tau)
    assert parse_selector(f"greedy-coverage(tau={tau})").select(matrix).order == plain.greedy_coverage(rows, tau)
    assert parse_selector(f"greedy-alpha(tau={tau},alpha={alpha})").select(matrix).order == plain.greedy_alpha(
        rows, tau, alpha
    )


@given(probabilities)
def test_probabilities_are_selected_as_the_definitions_say(columns: FloatArray) -> None:
    matrix = CoverageMatrix(columns.T, Scale.probability)
    rows = columns.T.tolist()
    assert parse_selector("greedy-sum(tau=0)").select(matrix).order == plain.greedy_sum(rows, 0)
    assert parse_selector("greedy-expected").select(matrix).order == plain.greedy_expected(rows)


def test_the_worth_of_a_selection() -> None:
    covers = np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])  # two sub-questions, three documents
    assert take(Utility(covers, decay=1.0))[1] == 2.0
    assert take(Utility(covers, decay=0.5))[1] == 3.0  # 2 + .5 + .5
    assert take(Utility(covers * 4, decay=None), start=np.array([1]))[1] == 8.0


def test_a_process_compiles_once_it_has_selected_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = CoverageMatrix(np.array([[0.0, 3.0], [3.0, 3.0], [5.0, 0.0]]), Scale.rating)
    selector = parse_selector("greedy-alpha(alpha=0.5,tau=3)")
    monkeypatch.setattr(kernel._Progress, "steps", 0)
    before = selector.select(matrix)
    monkeypatch.setattr(kernel._Progress, "steps", kernel.COMPILE_AFTER_STEPS)
    assert selector.select(matrix) == before
    monkeypatch.setattr(kernel, "compiled_steps", lambda: None)  # an installation without numba
    assert selector.select(matrix) == before
