"""The four ways to ask a language model, as one funnel over SmolLM2 in vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import lancer
from lancer.formats.runs import read_run
from lancer.schema import order_field
from tests.pipeline.small import DOCUMENTS, REQUESTS, small_config

pytestmark = [pytest.mark.ray, pytest.mark.vllm, pytest.mark.usefixtures("session_ray")]

QUERIES = ("q1", "q3")
METHODS = ("pointwise", "graded", "listwise", "setwise")


def test_a_language_model_orders_in_four_ways(tmp_path: Path) -> None:
    options = {"listwise": ", window: 4, step: 2, keep: 6", "setwise": ", top: 3, keep: 3"}
    steps = ", ".join(f"{{method: {m}, engine: llm{options.get(m, '')}}}" for m in METHODS)
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(json.dumps({"query_id": i, "text": REQUESTS[i][0]}) + "\n" for i in QUERIES))
    config = small_config(
        tmp_path,
        f"requests={asked}",
        "decompose=null",
        "estimate=null",
        "select=null",
        f"rerank=[{steps}]",
        "engines={llm: {kind: vllm, model: 'embedded:smollm2', max_model_len: 2048}}",
    )
    result = lancer.run(config)
    assert set(result.engines) == {"llm"}, "all steps share one engine"
    run = tmp_path / "run"
    columns = {
        method: pq.read_table(next(run.glob(f"parts/rerank.{method}-*")))[order_field(method).name].to_pylist()
        for method in METHODS
    }
    for method, orders in columns.items():
        assert len(orders) == len(QUERIES)
        assert all(sorted(order["doc_ids"]) == sorted(DOCUMENTS) for order in orders), method
    assert all(0 < score < 1 for order in columns["pointwise"] for score in order["scores"])
    assert any(order["doc_ids"] != list(DOCUMENTS) for order in columns["pointwise"])
    assert all(score in (0, 1, 2, 3) for order in columns["graded"] for score in order["scores"])
    assert all(len(order["raw"]) == 3 for order in columns["listwise"]), "8 documents, windows of 4, steps of 2"
    assert all(set(raw) <= set("ABCD") for order in columns["setwise"] for raw in order["raw"])
    assert all(len(ranked) == 3 for ranked in read_run(run / "run.setwise.trec").rankings.values())

    ledger = pq.read_table(run / "ledger.parquet").to_pylist()
    calls = {m: sum(r["calls"] for r in ledger if r["stage"] == f"rerank.{m}") for m in METHODS}
    assert calls["pointwise"] == calls["graded"] == len(QUERIES) * len(DOCUMENTS)
    assert calls["listwise"] == 3 * len(QUERIES)
    assert sum(calls.values()) == result.engines["llm"][0].calls
    reasons = {r["reason"] for r in pq.read_table(run / "failures.parquet").to_pylist()}
    assert reasons <= {"malformed", "unreadable"}, "a small model's lists are not always whole"
