"""Sums have one order on every machine: from the first sub-question to the last."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lancer.selection.arithmetic import column_sums, descending
from lancer.selection.matrix import FloatArray

shapes = st.tuples(st.integers(0, 150), st.integers(0, 4))


@given(arrays.arrays(np.float64, shapes, elements=st.floats(0, 1)), st.booleans())
def test_sums_are_added_in_turn(columns: FloatArray, transposed: bool) -> None:
    expected = [0.0] * columns.shape[1]
    for row in columns.tolist():
        expected = [total + value for total, value in zip(expected, row, strict=True)]
    given_as = np.asfortranarray(columns) if transposed else columns
    assert column_sums(given_as).tolist() == expected


def test_the_sum_of_a_single_candidate_is_that_of_the_same_candidate_among_others() -> None:
    columns = np.full((8, 3), 0.4)
    assert column_sums(columns[:, :1]).tolist() == column_sums(columns)[:1].tolist() == [3.1999999999999997]


def test_ties_keep_the_first_stage_order() -> None:
    assert descending(np.array([1.0, 2.0, 1.0, 2.0])).tolist() == [1, 3, 0, 2]
