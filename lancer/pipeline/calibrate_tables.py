"""What `lancer calibrate` prints: the figures before and after, of the queries it was fitted on and of the others."""

from __future__ import annotations

import math
from typing import Any

from rich.console import Group

from lancer.pipeline.calibrate import Calibrated
from lancer.pipeline.tables import plain_table
from lancer.schema import Scale


def render(result: Calibrated) -> Group:
    """For a console."""
    calibration, threshold = result.calibration, result.calibration.threshold
    assert threshold is not None
    error = "Brier" if calibration.scale is Scale.probability else "squared error"
    table = plain_table(
        "queries", "number", "values", "cells", "positive", "AUC", error, "log loss", f"{threshold.measure} at tau"
    )
    for line in result.lines:
        f = line.figures
        numbers = [_number(v) for v in (f.auc, f.error, f.log_loss, line.measure)]
        table.add_row(line.queries, str(line.count), line.values, f"{f.cells:,}", f"{f.positives:,}", *numbers)
    at = threshold.selector or f"tau {threshold.tau:g}"
    parts: list[Any] = [table, "", *(f"note: {note}" for note in result.notes)]
    parts.append(f"{result.path}: {calibration.from_scale.value} to {calibration.scale.value} ({calibration.target})")
    parts.append(f"best on the development queries: {at} ({threshold.measure} {threshold.value:.4f})")
    return Group(*parts)


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4f}"
