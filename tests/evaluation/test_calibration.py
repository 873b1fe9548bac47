"""Every number here is computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lancer.evaluation.calibration import apply_knots, auc, best_threshold, f1, figures, fit_isotonic, in_share


def array(*values: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array(values, dtype=np.float64)


def test_rising_means_are_kept() -> None:
    values, targets = array(1, 1, 2, 2, 3), array(0, 0, 0, 1, 1)
    assert fit_isotonic(values, targets) == [(1.0, 0.0), (2.0, 0.5), (3.0, 1.0)]


def test_violators_are_pooled_into_one_knot_at_their_mean() -> None:
    # Means 0, 1, 1/3 (of three), 1: the second and third pool to (1 + 1) / 4 at (2 + 3 * 3) / 4.
    values, targets = array(1, 2, 3, 3, 3, 4), array(0, 1, 0, 0, 1, 1)
    assert fit_isotonic(values, targets) == [(1.0, 0.0), (2.75, 0.5), (4.0, 1.0)]


def test_pooling_goes_back_as_far_as_it_must() -> None:
    # 3, 2, 1 falls throughout: one block.
    assert fit_isotonic(array(1, 2, 3), array(3, 2, 1)) == [(2.0, 2.0)]
    # 1, 3, 2, 2: the 3 pools with both, (3 + 2 + 2) / 3.
    assert fit_isotonic(array(0, 1, 2, 3), array(1, 3, 2, 2)) == [(0.0, 1.0), (2.0, pytest.approx(7 / 3))]


def test_between_knots_are_lines_and_beyond_them_nothing_changes() -> None:
    knots = [(1.0, 0.0), (2.0, 0.5), (4.0, 1.0)]
    found = apply_knots(knots, array(0, 1, 1.5, 3, 5, math.nan))
    assert found[:5].tolist() == [0.0, 0.0, 0.25, 0.75, 1.0]
    assert math.isnan(found[5])


def test_auc_counts_pairs_in_order_and_ties_by_half() -> None:
    positive = np.array([True, True, False, False])
    assert auc(array(4, 2, 3, 1), positive) == 0.75
    assert auc(array(4, 3, 3, 1), positive) == 0.875
    assert math.isnan(auc(array(1, 2), np.array([True, True])))
    random = np.random.default_rng(1)
    positive, values = random.random(60) < 0.3, random.integers(0, 8, 60).astype(float)  # with ties
    above = [(a > b) + (a == b) / 2 for a in values[positive] for b in values[~positive]]
    assert auc(values, positive) == pytest.approx(np.mean(above))


def test_figures_of_probabilities() -> None:
    found = figures(array(0.9, 0.5, 0.2), array(1, 0, 0), np.array([True, False, False]))
    assert (found.cells, found.positives, found.auc) == (3, 1, 1.0)
    assert found.error == pytest.approx((0.01 + 0.25 + 0.04) / 3)
    assert found.log_loss == pytest.approx(-(math.log(0.9) + math.log(0.5) + math.log(0.8)) / 3)


def test_a_certain_error_costs_much_but_not_everything() -> None:
    found = figures(array(0.0), array(1), np.array([True]))
    assert found.log_loss == pytest.approx(-math.log(1e-6))


def test_grades_have_no_log_loss() -> None:
    found = figures(array(3, 1), array(5, 0), np.array([True, False]))
    assert (found.error, found.log_loss) == (2.5, None)


def test_f1_of_cells() -> None:
    covered, positive = np.array([True, True, False, False]), np.array([True, False, True, False])
    assert f1(covered, positive) == 0.5
    assert f1(~covered & covered, ~covered & covered) == 0.0


def test_the_last_of_the_best_thresholds() -> None:
    assert best_threshold(lambda tau: float(tau <= 4), 5.0) == (4.0, 1.0)
    assert best_threshold(lambda tau: -abs(tau - 0.3), 1.0) == (0.3, 0.0)


def test_a_share_of_queries_is_by_hash_and_nested() -> None:
    ids = [str(i) for i in range(1000)]
    half, most = ({i for i in ids if in_share(i, s)} for s in (0.5, 0.8))
    assert half < most
    assert 450 < len(half) < 550
    assert not any(in_share(i, 0.0) for i in ids)
    assert all(in_share(i, 1.0) for i in ids)
