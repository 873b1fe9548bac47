"""Runs in which a judge is asked for some cells after an estimator has seen all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import lancer
from lancer.config import Config, load_config
from lancer.errors import InputError, UsageError
from lancer.formats.coverage import read_stored_matrices
from lancer.formats.runs import read_run
from lancer.pipeline.describe import describe
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.plan import Plan, make_plan
from lancer.pipeline.reselect import reselect
from lancer.pipeline.resume import Work
from lancer.schema import Scale
from lancer.selection import CoverageMatrix, parse_selector
from lancer.stages.cascade import Cascade, JudgeOnly
from lancer.storage import Storage
from tests.pipeline.small import DOCUMENTS, DRAWN, REQUESTS, small_config
from tests.recorded_grades import record_grades

SPEC, K = "sum(tau=1)", 2
ONLY: dict[str, Any] = {"top_documents": 6, "until": {"selector": SPEC, "k": K, "round": 3}}


def cascade_config(folder: Path, *overrides: str, only: dict[str, Any] | None = None) -> Config:
    """The small run with a synthetic judge after its estimator."""
    return small_config(
        folder,
        f"judge={json.dumps({'engine': 'llm', 'only': only or ONLY})}",
        "engines.llm={kind: synthetic}",
        f"select.selectors=['{SPEC}']",
        *overrides,
    )


def plan_of(config: Config) -> Plan:
    return make_plan(config, read_inputs(config, Storage()), Storage())


def test_the_plan_says_what_is_asked(tmp_path: Path) -> None:
    plan = plan_of(cascade_config(tmp_path, f"select.selectors=['{SPEC}', max]"))
    assert [s.name for s in plan.stages] == ["retrieve", "decompose", "estimate", "judge", "select"]
    assert plan.run_tag == "given:estimate:judge"
    assert plan.scale is Scale.rating
    description = describe(plan, Work({}, frozenset(), {}, plan.shards))
    judge = next(s for s in description.stages if s["name"] == "judge")
    assert "probabilities" in judge["reads"]
    assert description.notes[-2:] == [
        "judge asks for cells of the 6 documents with the highest estimates, until the top 2 of sum(tau=1) is decided "
        "(exact); the others keep the estimate",
        "judge.only.until does not look at max: ranked by a matrix judged for another",
    ]


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("judge.only.top_documents=5", {"judge", "select"}),
        ("judge.only.until.round=4", {"judge", "select"}),
        ("estimate.with_request=true", {"estimate", "judge", "select"}),
    ],
)
def test_a_change_reaches_what_depends_on_it(tmp_path: Path, override: str, changed: set[str]) -> None:
    before, after = (plan_of(cascade_config(tmp_path, *o)) for o in ((), (override,)))
    pairs = zip(before.stages, after.stages, strict=True)
    assert {a.name for a, b in pairs if a.fingerprint != b.fingerprint} == changed


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("judge.only=null", "say in `judge.only` which cells the judge is asked for after the estimator"),
        ("estimate=null", "`judge.only` chooses cells by their estimates: it needs `estimate`"),
        ("judge.only.until.selector=sum(tau=2)", "which `select.selectors` lacks; did you mean 'sum(tau=1)'?"),
        ("judge.only.until.selector=mmr(lambda=0.5)", "cannot be decided from a part of the matrix"),
        ("judge.only.top_document=3", "unknown key 'judge.only.top_document'; did you mean 'top_documents'?"),
        ("judge.only={}", "says nothing"),
        ("rerank=[{method: bi-encoder, engine: scorer}]", "breaks ties in first-stage order"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        cascade_config(tmp_path, override)
    assert message in str(error.value)


def test_estimates_must_be_probabilities_that_the_map_was_made_for(tmp_path: Path) -> None:
    made = {"stage": "estimate", "settings": {"with_request": True}, "engines": []}
    provenance: dict[str, Any] = dict.fromkeys(("date", "matrix", "matrix_digest", "qrels", "qrels_digest"), "")
    calibration: dict[str, Any] = {
        "target": "grade",
        "scale": "rating",
        "from_scale": "probability",
        "knots": [[0, 0], [1, 4]],
    }
    calibration |= {
        "made_for": made,
        "provenance": provenance | {"versions": {}, "queries": [], "cells": 0, "positives": 0},
    }
    (tmp_path / "map.json").write_text(json.dumps(calibration))
    config = cascade_config(tmp_path, f"judge.only.calibration={tmp_path}/map.json")
    with pytest.raises(InputError, match=r"map\.json: was made for other values: .*with_request was True"):
        plan_of(config)
    (tmp_path / "map.json").write_text(json.dumps(calibration | {"made_for": None}))
    with pytest.raises(InputError, match="does not say what it was made for"):
        plan_of(config)
    with pytest.raises(UsageError, match=r"leave `estimate\.calibration` out"):
        cascade_config(tmp_path, "judge.only.calibration=a", "estimate.calibration=b")


@pytest.mark.ray
@pytest.mark.usefixtures("session_ray")
def test_a_run_asks_for_what_matters_and_goes_on_from_its_journal(tmp_path: Path) -> None:
    result = lancer.run(cascade_config(tmp_path, DRAWN))
    run = tmp_path / "run"
    pairs = sum(len(questions) for _, questions in REQUESTS.values()) * len(DOCUMENTS)
    asked = next(s.calls for s in result.stages if s.stage == "judge")
    assert 0 < asked < pairs * 6 / 8
    coverage = pq.read_table(run / "coverage.parquet").to_pylist()
    assert len(coverage) == pairs
    assert sum(r["status"] == "ok" for r in coverage) == asked
    for row in coverage:
        assert row["probability"] is not None, "the estimate stays beside the rating"
        if row["status"] == "ok":
            assert str(int(row["rating"])) == row["raw"]
        else:
            assert (row["status"], row["raw"]) == ("estimated", "")
            assert row["rating"] == pytest.approx(5 * row["probability"], abs=1e-6)
    assert {m.scale for m in read_stored_matrices(run)} == {Scale.rating}
    totals = next(s for s in result.stages if s.stage == "judge")
    assert (totals.cells, totals.failed_cells) == (asked, 0), "cells that were not asked count neither way"

    at_once = {"top_documents": 6}
    lancer.run(cascade_config(tmp_path, DRAWN, f"output={tmp_path}/full", only=at_once))
    lazily, full = (read_run(folder / "run.trec") for folder in (run, tmp_path / "full"))
    assert lazily.tag == f"given:estimate:judge:{SPEC}"
    for query_id in REQUESTS:
        tops = [[d for d, _ in found.rankings[query_id][:K]] for found in (lazily, full)]
        assert tops[0] == tops[1], "until the top 2 is decided: the same top 2"
    again = reselect(str(run), [SPEC], str(tmp_path / "again.trec"))
    assert read_run(again.files[SPEC]) == lazily

    before = (run / "run.trec").read_bytes()
    for part in [*(run / "parts").glob("judge-*/*.parquet"), *(run / "coverage.parquet").iterdir()]:
        part.unlink()
    resumed = next(s for s in lancer.run(cascade_config(tmp_path, DRAWN)).stages if s.stage == "judge")
    assert (resumed.calls, resumed.reused_calls) == (0, asked)
    assert (run / "run.trec").read_bytes() == before


@pytest.mark.ray
@pytest.mark.shared
@pytest.mark.usefixtures("session_ray")
def test_recorded_grades_are_asked_for_as_often_as_the_rule_says(tmp_path: Path, shared_data: Path) -> None:
    """The real data: a run with the grades as the judge's answers saves what the benchmark's arithmetic saves."""
    import gzip

    data, queries = shared_data / "dl19-subquestions", 2
    lines = (data / "queries.tsv").read_text().splitlines(keepends=True)[:queries]
    (tmp_path / "queries.tsv").write_text("".join(lines))
    only = {"top_documents": 40, "uncertain": [0.3, 1.0]}
    only |= {"until": {"selector": "greedy-coverage(tau=4)", "k": 10, "round": 64}}
    config = load_config(
        Path(__file__).parents[2] / "configs/oracle.yaml",
        [
            f"output={tmp_path}/run",
            f"requests={tmp_path}/queries.tsv",
            f"corpus={data}/docs.jsonl.gz",
            f"retrieve.run={data}/candidates.bm25-judged-pool.run",
            f"decompose.path={data}/subquestions.tsv",
            f"judge={json.dumps({'engine': 'grades', 'only': only})}",
            f"engines.grades={{kind: replay, path: {tmp_path}/grades.jsonl, strict: true}}",
            "select.selectors=['greedy-coverage(tau=4)']",
        ],
    )
    grades = {}
    with gzip.open(data / "grades.subquestions.txt.gz", "rt") as rows:
        for row in rows:
            query_id, question, doc_id, grade = row.split()
            grades[query_id, doc_id, question] = int(grade)
    record_grades(tmp_path / "grades.jsonl", read_inputs(config, Storage()), grades)
    result = lancer.run(config)

    calls = 0
    selector = parse_selector("greedy-coverage(tau=4)")
    ranked = read_run(tmp_path / "run" / "run.trec").rankings
    coverage = pq.read_table(tmp_path / "run" / "coverage.parquet").to_pylist()
    for query_id in ranked:
        own = [r for r in coverage if r["query_id"] == query_id]
        shape = (100, len(own) // 100)
        estimates = np.array([r["probability"] for r in own], dtype=np.float64).reshape(shape)
        truth = np.array([grades[query_id, r["doc_id"], r["sub_question_id"]] for r in own], dtype=np.float64)
        truth = truth.reshape(shape)
        cascade = Cascade(JudgeOnly.model_validate(only), estimates, [True] * 100)
        ratings = cascade.ratings.copy()
        while cells := cascade.ask():
            calls += len(cells)
            for cell in cells:
                ratings[cell] = truth[cell]
            cascade.tell({cell: float(truth[cell]) for cell in cells})
        stored = np.array([r["rating"] for r in own], dtype=np.float64).reshape(shape)
        np.testing.assert_array_equal(stored, ratings)
        doc_ids = list(dict.fromkeys(r["doc_id"] for r in own))
        order = selector.order(CoverageMatrix(ratings, Scale.rating))
        assert [d for d, _ in ranked[query_id]] == [doc_ids[i] for i in order]
    assert len(ranked) == queries
    assert next(s.calls for s in result.stages if s.stage == "judge") == calls < 100 * 10 * queries * 0.4
