"""What a coverage matrix accepts, what counts as covered, and how an order is explained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lancer.errors import InputError
from lancer.schema import Scale
from lancer.selection import CoverageMatrix, Selection


def matrix(values: Any, scale: str = "rating", **more: Any) -> CoverageMatrix:
    return CoverageMatrix(values, Scale(scale), **more)


def test_missing_values_are_counted_and_count_as_zero() -> None:
    made = matrix([[None, 3.0], [float("nan"), 0.0]])
    assert made.missing == 2
    assert made.filled.tolist() == [[0.0, 3.0], [0.0, 0.0]]
    assert made.unit.tolist() == [[0.0, 0.6], [0.0, 0.0]]


@pytest.mark.parametrize(
    ("values", "shape"), [([], (0, 0)), ([[]], (1, 0)), ([[], []], (2, 0)), (np.empty((0, 3)), (0, 3)), ([[1]], (1, 1))]
)
def test_degenerate_shapes(values: Any, shape: tuple[int, int]) -> None:
    made = matrix(values)
    assert (made.candidates, made.sub_questions) == shape


@pytest.mark.parametrize(
    ("values", "more", "message"),
    [
        ([[1, 2], [3]], {}, "field 'values': must be rows of equal length"),
        ([["five"]], {}, "field 'values': must be rows of equal length, of numbers or nulls"),
        ([1, 2], {}, "field 'values': must be a table of two dimensions, found 1"),
        ([[1, 0], [0, 6]], {}, "6 at candidate 2, sub-question 2 is outside the scale 'rating' (0 to 5)"),
        ([[-1]], {}, "-1 at candidate 1, sub-question 1 is outside the scale"),
        ([[float("inf")]], {}, "inf at candidate 1"),
        ([[1], [2]], {"second_order": [0, 0]}, "field 'second_order': must hold every row of the matrix exactly once"),
        ([[1], [2]], {"second_order": [1]}, "field 'second_order': must be 2 finite numbers"),
        ([[1], [2]], {"second_order": [0.5, 1]}, "field 'second_order': must be whole numbers"),
        ([[1], [2]], {"token_counts": [5, -2]}, "field 'token_counts': found -2, a count is at least 0"),
        ([[1], [2]], {"token_counts": [5, None]}, "field 'token_counts': must be 2 finite numbers"),
        ([[1], [2]], {"first_stage_scores": [1, float("nan")]}, "field 'first_stage_scores': must be 2 finite"),
        ([[1], [2]], {"embeddings": [[1, 2]]}, "field 'embeddings': must be 2 rows of finite numbers"),
    ],
)
def test_refused(values: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        matrix(values, **more)
    assert message in str(refused.value)


def test_a_probability_is_compared_as_the_float32_it_is_stored_as() -> None:
    stored = np.array([[0.3, 0.30000004, 0.7, np.nan, 0.0]], dtype=np.float32)
    made = matrix(stored, "probability")
    assert made.covered(0.3, strict=True).tolist() == [[False, True, True, False, False]]
    assert made.covered(0.3).tolist() == [[True, True, True, False, False]]
    assert made.covered(0.7).tolist() == [[False, False, True, False, False]]  # float32 .7 is below float64 .7
    assert made.covered(0.0).tolist() == [[True, True, True, False, False]]
    assert made.covered(0.0, strict=True).tolist() == [[True, True, True, False, False]]


def test_probabilities_given_as_float64_meet_their_own_tau() -> None:
    made = matrix([[0.1, 0.3, 0.7]], "probability")
    assert made.covered(0.1).tolist() == [[True, True, True]]
    assert made.covered(0.7).tolist() == [[False, False, True]]
    assert made.covered(0.3, strict=True).tolist() == [[False, False, True]]


def test_the_explanation_names_the_first_document_that_covers() -> None:
    covered = np.array([[True, False, False], [True, True, False], [False, True, False]])
    assert Selection.explain(np.array([1, 2, 0]), covered) == Selection(
        order=[1, 2, 0], covers=[[0, 1], [], []], uncovered=[2]
    )
    assert Selection.explain(np.array([2, 0, 1]), covered).covers == [[1], [0], []]
