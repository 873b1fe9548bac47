"""Interpolated precision at recall points."""

from __future__ import annotations

import pytest

from lancer.evaluation.interpolated import interpolated_precision

RANKING = ["r1", "n1", "r2", "n2", "n3", "r3"]
RELEVANT = {"r1", "r2", "r3", "r4"}


@pytest.mark.parametrize(
    ("recall", "value"),
    [
        (0.0, 1.0),
        (0.25, 1.0),
        (0.3, 1.0),
        (0.375, 2 / 3),
        (0.5, 2 / 3),
        (0.75, 0.5),
        (0.85, 0.5),
        (0.9, 0.0),
        (1.0, 0.0),
    ],
)
def test_by_hand(recall: float, value: float) -> None:
    assert interpolated_precision(RANKING, RELEVANT, recall=recall) == pytest.approx(value)


def test_nothing_relevant() -> None:
    assert interpolated_precision(RANKING, set(), recall=0.0) == 0.0


def test_recall_points_are_rounded_as_in_trec_eval_10() -> None:
    """47.4 of 474 relevant documents are 47; trec_eval 9 makes 48 of it."""
    relevant = {f"r{number}" for number in range(474)}
    ranking = [f"r{number}" for number in range(47)] + ["n"] * 53
    assert interpolated_precision(ranking, relevant, recall=0.1) == 1.0
