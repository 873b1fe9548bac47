"""Lucene, SmolLM2 in vLLM and MiniLM on a part of the bundled sample."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import lancer
from lancer.formats.runs import read_run

pytestmark = [pytest.mark.ray, pytest.mark.java, pytest.mark.vllm, pytest.mark.usefixtures("session_ray")]

ROOT = Path(__file__).resolve().parents[2]


def test_decompose_and_judge_with_one_shared_llm(tmp_path: Path) -> None:
    requests = tmp_path / "requests.jsonl"
    requests.write_text("".join((ROOT / "configs/sample/requests.jsonl").read_text().splitlines(keepends=True)[:4]))
    config = lancer.load_config(
        str(ROOT / "configs/demo.yaml"),
        [
            f"output={tmp_path}/run",
            f"requests={requests}",
            f"corpus={ROOT}/configs/sample/corpus.jsonl",
            f"qrels={ROOT}/configs/sample/qrels.txt",
            "retrieve.depth=10",
            "decompose.n=3",
            "estimate=null",
            "judge.max_tokens=1",
            "select.selectors=[sum(tau=1), greedy-coverage(tau=3)]",
            "shard_queries=2",
        ],
    )
    result = lancer.run(config)
    assert set(result.engines) == {"bm25", "llm"}, "decompose and judge share one engine"

    coverage = pq.read_table(tmp_path / "run/coverage.parquet").to_pylist()
    asked = {(r["query_id"], r["sub_question_id"]) for r in coverage}
    assert len(coverage) == 10 * len(asked)
    assert len({(r["query_id"], r["doc_id"], r["sub_question_id"]) for r in coverage}) == len(coverage)
    assert {r["status"] for r in coverage} == {"ok"}
    assert all(r["raw"] in "012345" and float(r["raw"]) == r["rating"] for r in coverage)

    ledger = pq.read_table(tmp_path / "run/ledger.parquet").to_pylist()
    judged = [r for r in ledger if r["stage"] == "judge"]
    assert sum(r["pairs"] for r in judged) == sum(r["calls"] for r in judged) == len(coverage)
    assert all(0 < r["cached_tokens"] < r["prompt_tokens"] for r in judged), "pairs of one document share their prefix"
    assert all(r["latency_p50_s"] <= r["latency_p95_s"] <= r["latency_max_s"] for r in judged)
    tokens = sum(r["prompt_tokens"] + r["output_tokens"] for r in ledger if r["engine"] == "llm")
    assert tokens == sum(c.tokens for c in result.engines["llm"]), "the ledger's tokens are the engine's own"

    for name in ("run.trec", "run.greedy-coverage(tau=3).trec", "first_stage.trec"):
        assert len(read_run(tmp_path / "run" / name).rankings) == 4
        assert 0 <= result.measures[name]["alpha_nDCG@10"] <= 1
