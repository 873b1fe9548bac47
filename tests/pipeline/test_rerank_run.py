"""Reranking on a real Ray: alone, then as a funnel before coverage in the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import lancer
from lancer.formats.runs import read_run
from lancer.pipeline.reselect import reselect
from tests.pipeline.small import DOCUMENTS, REQUESTS, small_config

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("session_ray")]

FIRST = "{method: bi-encoder, engine: scorer, keep: 6}"
ALONE = ("decompose=null", "estimate=null", "select=null")
SELECTOR = "greedy-coverage(tau=0.45,ties=second,rest=second)"


def rankings(run: Path) -> dict[str, list[str]]:
    return {query_id: [d for d, _ in ranked] for query_id, ranked in read_run(run).rankings.items()}


def rows(table: Path, **having: str) -> list[dict[str, Any]]:
    return [r for r in pq.read_table(table).to_pylist() if all(r[name] == value for name, value in having.items())]


def test_a_threshold_that_nothing_reaches_is_told_and_the_order_stays(tmp_path: Path) -> None:
    step = "{method: bi-encoder, engine: scorer, threshold: 0.999}"
    result = lancer.run(small_config(tmp_path, f"rerank={step}"))
    run = tmp_path / "run"
    assert result.notes == [
        "rerank step 'bi-encoder' kept no document of any query: bi-encoder(depth=100,threshold=0.999)"
    ]
    assert not (run / "run.bi-encoder.trec").exists()
    ranked = rankings(run / "run.trec")
    for query_id in REQUESTS:
        order = [r["doc_id"] for r in rows(run / "ranking.parquet", query_id=query_id, selector="rerank.bi-encoder")]
        assert ranked[query_id] == order
    assert rows(run / "coverage.parquet") == []


def test_alone_then_as_a_funnel_before_coverage(tmp_path: Path) -> None:
    run = tmp_path / "run"
    lancer.run(small_config(tmp_path, *ALONE, f"rerank={FIRST}"))
    alone = rankings(run / "run.trec")
    assert {q: sorted(ranked) for q, ranked in alone.items()} == {q: sorted(DOCUMENTS) for q in REQUESTS}
    assert alone["q3"][0] in "eg"  # a history of the bridge
    assert rankings(run / "run.bi-encoder.trec") == {q: ranked[:6] for q, ranked in alone.items()}
    assert read_run(run / "run.trec").tag == "given:bi-encoder(depth=100,keep=6)"
    assert rankings(run / "first_stage.trec")["q1"] == list(DOCUMENTS)
    assert rows(run / "coverage.parquet") == []
    assert not (run / "run.rerank.trec").exists()

    second = "{method: graded, engine: llm, name: grades, keep: 3, depth: 4}"
    config = small_config(
        tmp_path,
        f"rerank=[{FIRST}, {second}]",
        f'select.selectors=["{SELECTOR}", max]',
        "engines.llm={kind: synthetic}",
    )
    result = lancer.run(config)
    assert {s.stage: s.reused_queries for s in result.stages} == {
        "retrieve": 4, "rerank.bi-encoder": 4, "rerank.grades": 0, "decompose": 0, "estimate": 0, "select": 0
    }  # fmt: skip
    kept = rankings(run / "run.grades.trec")
    chosen = rankings(run / "run.trec")
    for query_id, ranked in chosen.items():
        assert len(kept[query_id]) == 3
        assert set(kept[query_id]) <= set(alone[query_id][:4])
        assert set(ranked[:3]) == set(kept[query_id])
        order = [r["doc_id"] for r in rows(run / "ranking.parquet", query_id=query_id, selector="rerank.grades")]
        assert ranked[3:] == order[3:]
        assert order[4:] == alone[query_id][4:]
    assert read_run(run / "run.trec").tag == (
        f"given:bi-encoder(depth=100,keep=6):graded(depth=4,grades=3,keep=3):estimate:{SELECTOR}"
    )
    questions = sum(len(texts) for _, texts in REQUESTS.values())
    coverage = rows(run / "coverage.parquet")
    assert len(coverage) == 3 * questions
    assert {r["status"] for r in coverage} == {"ok"}
    ledger = rows(run / "ledger.parquet", stage="rerank.grades")
    assert [(r["attempt"], r["calls"], r["pairs"]) for r in ledger] == [(1, 4, 4)] * 4
    assert all(r["kept"] == (r["doc_id"] in kept[r["query_id"]]) for r in rows(run / "ranking.parquet", selector="max"))

    again = reselect(str(run), [SELECTOR, "max"], str(tmp_path / "selected"))
    for spec, name in ((SELECTOR, "run.trec"), ("max", "run.max.trec")):
        assert Path(again.files[spec]).read_bytes() == (run / name).read_bytes()
    assert again.missing == 0
