from __future__ import annotations

import csv
import io
import json

import pytest

from lancer.errors import UsageError
from lancer.evaluation.stage_tables import render_stages
from lancer.evaluation.stages import evaluate_stages
from tests.evaluation.test_stages import QRELS, STEPS

STAGES = evaluate_stages(STEPS, QRELS)


def test_table() -> None:
    lines = [line.split() for line in render_stages(STAGES).splitlines()]
    assert lines[0] == ["stage", "documents", "recall", "precision", "sub-topic", "recall"]
    assert lines[2] == ["second", "2.0", "0.7500", "0.8333", "0.8333"]
    assert lines[7] == ["third", "0.83,", "0.71", "1.20,", "1.82", "1.00,", "-", "0.80,", "0.80"]
    assert lines[5][-1] == "recall"
    text = render_stages(STAGES)
    assert "Note on first: queries of the run that the judgments lack, ignored: 1 (unjudged)." in text


def test_one_stage_has_no_lift() -> None:
    assert "lift" not in render_stages(STAGES[:1])


def test_json() -> None:
    second = json.loads(render_stages(STAGES, "json"))["stages"][1]
    assert (second["stage"], second["documents"]) == ("second", 2.0)
    recall = second["measures"]["recall"]
    assert (recall["mean"], recall["lift_first"]) == (0.75, pytest.approx(0.75 / 0.875))
    assert recall["interval"][0] <= 0.75 <= recall["interval"][1]
    assert second["equal_depth"]["lift_before"] == pytest.approx(5.0)


def test_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(render_stages(STAGES, "csv"))))
    assert len(rows) == 9
    assert (rows[0]["stage"], rows[0]["measure"], rows[0]["lift_before"]) == ("first", "recall", "")
    assert float(rows[4]["equal_depth_first"]) == pytest.approx(5.0)
    assert rows[3]["equal_depth_first"] == ""


def test_latex() -> None:
    text = render_stages(STAGES, "latex")
    assert "second & 2.0 & 0.7500 & 0.86 & 0.86 & 0.8333 & 1.52 & 1.52 & 0.8333 & 1.00 & 1.00 \\\\" in text
    assert "{lrrrrrrrrrr}" in text


def test_another_output() -> None:
    with pytest.raises(UsageError, match="output 'jsn' does not exist; did you mean 'json'"):
        render_stages(STAGES, "jsn")
