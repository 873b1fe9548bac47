"""Stage judge after stage estimate: what is asked, in which calls, and what stands beside it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lancer import schema
from lancer.engines.protocols import Generation, Sampling
from lancer.errors import InputError, UsageError
from lancer.evaluation.calibration_file import Calibration, Provenance
from lancer.schema import Scale
from lancer.selection import CoverageMatrix, parse_selector
from lancer.stages.base import StageOutput, call
from lancer.stages.judge import Judge, JudgeConfig
from lancer.stages.select import coverage_matrix
from tests.scripted import Engines, ScriptedText
from tests.stages.batches import with_matrix_inputs

N, M = 12, 4
TRUTH = np.random.default_rng(5).choice([0, 0, 0, 1, 3, 4, 5], (N, M))
ESTIMATES = np.clip(TRUTH / 6 + np.random.default_rng(6).normal(0, 0.1, (N, M)), 0, 1).astype(np.float32)
TEXTS = {f"d{i:02}": f"text {i:02}." for i in range(N)}
QUESTIONS = [f"number {j}?" for j in range(M)]


def batch(stage: Judge, probabilities: list[list[float | None]], **row: Any) -> pa.Table:
    given = {"query_id": "a", "candidates": list(TEXTS), "sub_questions": QUESTIONS} | row
    table = with_matrix_inputs(Judge(JudgeConfig()), [given])
    return table.append_column(schema.PROBABILITIES, pa.array([probabilities], schema.PROBABILITIES.type))


def grade(prompt: str, sampling: Sampling) -> str | Generation:
    """What the truth says of a prompt, for one sub-question or for all of a document."""
    i = next(i for i in range(N) if f"text {i:02}." in prompt)
    found = [j for j in range(M) if QUESTIONS[j] in prompt]
    if sampling.json_schema is None:
        return str(TRUTH[i, found[0]])
    return json.dumps({str(n): int(TRUTH[i, j]) for n, j in enumerate(found, 1)})


def judge(
    only: dict[str, Any], answer: Any = grade, estimates: Calibration | None = None, **settings: Any
) -> tuple[dict[str, Any], StageOutput, ScriptedText]:
    stage = Judge(JudgeConfig.model_validate({"only": only} | settings), estimates=estimates)
    text = ScriptedText(answer)
    table, output = call(stage, batch(stage, ESTIMATES.tolist()), Engines(text=text, texts=TEXTS))
    return {name: table[name][0].as_py() for name in table.column_names if name != "query_id"}, output, text


def test_cells_that_are_not_asked_keep_the_estimate_with_a_status_of_their_own() -> None:
    columns, output, text = judge({"top_documents": 3})
    top = np.argsort(-ESTIMATES.astype(np.float64).sum(axis=1), kind="stable")[:3].tolist()
    for i in range(N):
        if i in top:
            assert columns["ratings"][i] == TRUTH[i].tolist()
            assert columns["rating_status"][i] == ["ok"] * M
            assert columns["rating_raw"][i] == [str(r) for r in TRUTH[i]]
        else:
            assert columns["ratings"][i] == pytest.approx((5 * ESTIMATES[i]).tolist())
            assert columns["rating_status"][i] == ["estimated"] * M
            assert columns["rating_raw"][i] == [""] * M
    assert [(r.attempt, r.calls, r.pairs) for r in output.ledger] == [(1, 3 * M, 3 * M)]
    assert len(text.calls) == 1, "without rounds all cells go out together"


@pytest.mark.parametrize("spec", ["sum(tau=1)", "greedy-coverage(tau=4)"])
def test_until_decided_asks_in_rounds_and_ranks_as_if_all_were_judged(spec: str) -> None:
    columns, output, text = judge({"until": {"selector": spec, "k": 3, "round": 8}})
    selector = parse_selector(spec)
    found = coverage_matrix(columns["ratings"], M, Scale.rating)
    full = CoverageMatrix(TRUTH.astype(np.float64), Scale.rating)
    assert selector.select(found).order[:3] == selector.select(full).order[:3]
    asked = sum(status == "ok" for line in columns["rating_status"] for status in line)
    assert 0 < asked < N * M
    assert len(text.calls) > 2
    assert [(r.attempt, r.pairs) for r in output.ledger] == [(1, asked)], "rounds are one attempt"


def test_a_call_that_rates_all_sub_questions_of_a_document_is_asked_for_all() -> None:
    until = {"selector": "sum(tau=1)", "k": 2, "round": 1, "slack": 0.15}
    columns, output, text = judge({"until": until}, layout="per-document")
    asked = sum(line == ["ok"] * M for line in columns["rating_status"])
    assert asked + sum(line == ["estimated"] * M for line in columns["rating_status"]) == N
    assert 0 < asked < N
    assert [(r.calls, r.pairs) for r in output.ledger] == [(asked, asked * M)]
    assert len(text.calls) == asked, "a round of one cell is a document"


def test_what_cannot_be_read_is_null_and_asked_again_in_its_round() -> None:
    def answer(prompt: str, sampling: Sampling) -> str | Generation:
        return "no idea" if QUESTIONS[0] in prompt else grade(prompt, sampling)

    until = {"selector": "sum(tau=1)", "k": 2, "round": 16}
    columns, output, _ = judge({"until": until}, answer, structured=False, attempts=2)
    first = [(line[0], status[0]) for line, status in zip(columns["ratings"], columns["rating_status"], strict=True)]
    assert (None, "unreadable") in first
    assert {status for _, status in first} <= {"unreadable", "estimated"}
    assert [r.attempt for r in output.ledger] == [1, 2]
    unread = sum(status == "unreadable" for _, status in first)
    assert output.ledger[1].calls == unread
    asked = sum(status != "estimated" for line in columns["rating_status"] for status in line)
    assert output.failures[0].detail == f"{unread} of {asked} cells: no_number {unread}"


def test_missing_texts_and_missing_estimates() -> None:
    stage = Judge(JudgeConfig.model_validate({"only": {"uncertain": [0.4, 0.6]}}))
    rows = [[0.5, 0.9], [None, None], [None, 0.1]]
    table = batch(stage, rows, candidates=["d00", "-d01", "d02"], sub_questions=QUESTIONS[:2])  # type: ignore[arg-type]
    text = ScriptedText(grade)
    columns, _ = call(stage, table, Engines(text=text, texts={"d00": TEXTS["d00"], "d02": TEXTS["d02"]}))
    assert columns["rating_status"].to_pylist() == [[["ok", "estimated"], ["no_text"] * 2, ["ok", "estimated"]]]
    asked = [[TRUTH[0, 0], 4.5], [None, None], [TRUTH[2, 0], 0.5]]
    assert columns["ratings"].to_pylist()[0] == [[v if v is None else pytest.approx(v) for v in r] for r in asked]
    few = Judge(JudgeConfig.model_validate({"only": {"top_documents": 1}}))
    table = batch(few, rows, candidates=["d00", "-d01", "d02"], sub_questions=QUESTIONS[:2])  # type: ignore[arg-type]
    columns, _ = call(few, table, Engines(text=text, texts={"d00": TEXTS["d00"], "d02": TEXTS["d02"]}))
    assert columns["rating_status"].to_pylist()[0][2] == ["error", "estimated"], "neither judged nor estimated"


def calibration(scale: Scale, from_scale: Scale = Scale.probability) -> Calibration:
    made = Provenance(
        date="", versions={}, matrix="", matrix_digest="", qrels="", qrels_digest="", queries=(), cells=0, positives=0
    )
    return Calibration(
        target="grade", scale=scale, from_scale=from_scale, knots=((0.5, 0.0), (1.0, 1.0)), provenance=made
    )


def test_a_calibration_says_what_estimates_are_worth() -> None:
    columns, _, _ = judge({"top_documents": 1}, estimates=calibration(Scale.rating))
    estimated = [
        (r, p)
        for line, status, estimates in zip(columns["ratings"], columns["rating_status"], ESTIMATES, strict=True)
        for r, s, p in zip(line, status, estimates, strict=True)
        if s == "estimated"
    ]
    assert estimated
    assert all(math.isclose(r, max(0.0, 2 * float(p) - 1), abs_tol=1e-6) for r, p in estimated)


def test_what_cannot_stand_beside_estimates_is_refused() -> None:
    config = JudgeConfig.model_validate({"only": {"top_documents": 1}, "readout": "likelihood"})
    with pytest.raises(UsageError, match="puts estimates beside ratings"):
        Judge(config)
    config = JudgeConfig.model_validate({"only": {"top_documents": 1, "probe": 1}, "layout": "per-document"})
    with pytest.raises(UsageError, match="layout 'per-document' all of them"):
        Judge(config)
    config = JudgeConfig.model_validate({"only": {"top_documents": 1, "calibration": "c.json"}})
    with pytest.raises(UsageError, match=r"c\.json: maps to probability"):
        Judge(config, estimates=calibration(Scale.probability))
    with pytest.raises(InputError, match=r"c\.json: maps values of scale rating"):
        Judge(config, estimates=calibration(Scale.rating, Scale.rating))


def test_everything_that_chooses_cells_is_in_the_identity() -> None:
    until = {"selector": "sum(tau=1)", "k": 3}
    seen = [
        Judge(JudgeConfig.model_validate({"only": only})).identity()
        for only in (
            {"top_documents": 1},
            {"top_documents": 2},
            {"uncertain": [0, 1]},
            {"until": until},
            {"until": until | {"k": 4}},
            {"until": until | {"round": 1}},
            {"until": until | {"slack": 0.1}},
        )
    ]
    config = JudgeConfig.model_validate({"only": {"top_documents": 1, "calibration": "c.json"}})
    seen.append(Judge(config, estimates=calibration(Scale.rating)).identity())
    assert len({json.dumps(identity, sort_keys=True) for identity in seen}) == len(seen)
