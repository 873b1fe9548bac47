"""Numbers of a judge or estimator → what they mean on given labels: isotonic calibration, and a threshold.

Fitted by pool-adjacent-violators (Ayer et al., 1955; for probabilities of classifiers Zadrozny and Elkan, KDD 2002). A
block of pooled values becomes one knot at its mean, with straight lines between knots (centred isotonic regression,
Oron and Flournoy, 2017): what stood apart before stays apart, so that rankings do not fall into ties.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

STEPS: Final = 100  # of the scale, tried as thresholds
LEAST: Final = 1e-6  # a probability in the log loss, which a single 0 or 1 would make infinite


@dataclass(frozen=True)
class Figures:
    """How values fit labels. `auc` is NaN with one kind of label only; `log_loss` is None where the target is a grade.

    `error` is the mean squared difference to the target: the Brier score of probabilities.
    """

    cells: int
    positives: int
    auc: float
    error: float
    log_loss: float | None


def fit_isotonic(values: Floats, targets: Floats) -> list[tuple[float, float]]:
    """The knots (value, calibrated value), values rising and calibrated ones not falling; shape (cells,) both."""
    from scipy.optimize import isotonic_regression

    points, place, weights = np.unique(values, return_inverse=True, return_counts=True)
    means = np.bincount(place, weights=targets) / weights
    result = isotonic_regression(means, weights=weights)
    knots = []
    for start, end in zip(result.blocks[:-1], result.blocks[1:], strict=True):
        centre = np.average(points[start:end], weights=weights[start:end])
        knots.append((float(centre), float(result.x[start])))
    return knots


def apply_knots(knots: Iterable[tuple[float, float]], values: Floats) -> Floats:
    """Straight lines between knots, constant beyond the first and the last; NaN stays NaN."""
    x, y = zip(*knots, strict=True)
    calibrated: Floats = np.interp(values, x, y)
    return calibrated


def figures(values: Floats, targets: Floats, positive: Bools) -> Figures:
    """`values` and `targets` in the scale of the target; without cells all figures are NaN."""
    with np.errstate(invalid="ignore"):
        error = float(np.mean((values - targets) ** 2)) if len(values) else np.nan
    loss = None
    if set(np.unique(targets)) <= {0.0, 1.0}:
        p = np.clip(values, LEAST, 1 - LEAST)
        loss = float(-np.mean(np.where(positive, np.log(p), np.log(1 - p)))) if len(values) else np.nan
    return Figures(len(values), int(positive.sum()), auc(values, positive), error, loss)


def auc(values: Floats, positive: Bools) -> float:
    """The share of (positive, negative) pairs in the right order, ties a half (Mann and Whitney, 1947)."""
    from scipy.stats import rankdata

    wins = int(positive.sum())
    if not 0 < wins < len(values):
        return float("nan")
    ranks = rankdata(values)
    return float((ranks[positive].sum() - wins * (wins + 1) / 2) / (wins * (len(values) - wins)))


def f1(covered: Bools, positive: Bools) -> float:
    """Of all cells together: 2 TP / (2 TP + FP + FN); 0 when nothing is covered and nothing positive."""
    hits = int((covered & positive).sum())
    total = int(covered.sum()) + int(positive.sum())
    return 2 * hits / total if total else 0.0


def best_threshold(measure: Callable[[float], float], maximum: float) -> tuple[float, float]:
    """(tau, its value): of the 100 steps up to the scale's maximum the best by the measure, the last of equals."""
    taus = [round(step * maximum / STEPS, 6) for step in range(1, STEPS + 1)]
    values = [measure(tau) for tau in taus]
    best = max(values)
    return next((tau, value) for tau, value in zip(reversed(taus), reversed(values), strict=True) if value == best)


def in_share(query_id: str, share: float) -> bool:
    """Whether a query belongs to the first part of a split, by its hash alone: whatever other queries there are."""
    number = int.from_bytes(hashlib.sha256(query_id.encode()).digest()[:8], "big")
    return number < share * 2**64
