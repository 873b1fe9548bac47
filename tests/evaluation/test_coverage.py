"""Cov@k and its curve."""

from __future__ import annotations

import pytest

from lancer.evaluation.coverage import Cov, coverage_curve

# Sub-question -> document -> rating. "3" is answered below tau = 3 only, "4" has no rating at all.
RATINGS: dict[str, dict[str, float]] = {
    "1": {"a": 5, "b": 0},
    "2": {"a": 2, "c": 3},
    "3": {"b": 2},
    "4": {},
}


def test_the_two_denominators() -> None:
    assert coverage_curve(["b", "a", "c"], RATINGS, tau=3, of="answerable", depth=4) == [0, 0.5, 1, 1]
    assert coverage_curve(["b", "a", "c"], RATINGS, tau=3, of="all", depth=4) == [0, 0.25, 0.5, 0.5]
    assert coverage_curve(["b", "a", "c"], RATINGS, tau=2, of="all", depth=2) == [0.25, 0.75]


def test_a_rating_of_zero_answers_nothing() -> None:
    assert coverage_curve(["b"], {"1": {"b": 0}, "2": {"b": 1}}, tau=0, of="all", depth=1) == [0.5]


def test_the_name_says_what_is_not_the_default() -> None:
    assert repr(Cov(cutoff=3, of="all", tau=2)) == "Cov(of='all',tau=2)@3"


@pytest.mark.parametrize("of", ["answerable", "all"])
def test_nothing_to_cover_is_zero(of: str) -> None:
    assert coverage_curve(["a"], {}, tau=3, of=of, depth=2) == [0, 0]  # type: ignore[arg-type]
    assert coverage_curve([], RATINGS, tau=3, of=of, depth=2) == [0, 0]  # type: ignore[arg-type]
    assert coverage_curve(["a"], {"1": {"a": 1}}, tau=3, of=of, depth=1) == [0]  # type: ignore[arg-type]


def test_the_curve_never_falls_and_ends_at_what_the_ranking_covers() -> None:
    ratings = {str(j): {f"d{i}": float((i * j) % 6) for i in range(30)} for j in range(1, 8)}
    curve = coverage_curve([f"d{i}" for i in range(30)], ratings, tau=4, of="answerable", depth=30)
    assert curve == sorted(curve)
    assert curve[-1] == 1.0
