"""Calibration files for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lancer.evaluation.calibration_file import Calibration, write_calibration

FILE: dict[str, Any] = {
    "target": "grade >= 4",
    "scale": "probability",
    "from_scale": "rating",
    "knots": ((0.0, 0.0), (5.0, 1.0)),
    "provenance": {
        "date": "2026-11-30",
        "versions": {"lancer": "0"},
        "matrix": "runs/x",
        "matrix_digest": "m",
        "qrels": "qrels.txt",
        "qrels_digest": "q",
        "queries": ("q1",),
        "cells": 10,
        "positives": 3,
    },
}


def write(path: Path, **changes: Any) -> str:
    """A file with `FILE`'s content but for `changes`; returns its path."""
    write_calibration(Calibration.model_validate(FILE | changes), str(path))
    return str(path)
