"""Lucene and SmolLM2 in vLLM on a part of the bundled sample: one run in which three stages share the engine."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import lancer
from lancer.formats.runs import read_run
from lancer.pipeline.summary import RunResult
from lancer.text.sentences import sentence_spans
from tests.pipeline.compressed import check_spans

pytestmark = [pytest.mark.ray, pytest.mark.java, pytest.mark.vllm]

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "configs" / "sample"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, session_ray: None) -> tuple[Path, RunResult]:
    """The folder and the result: vLLM takes half a minute to start, so once."""
    folder = tmp_path_factory.mktemp("models")
    requests = folder / "requests.jsonl"
    requests.write_text("".join((SAMPLE / "requests.jsonl").read_text().splitlines(keepends=True)[:4]))
    config = lancer.load_config(
        str(ROOT / "configs/demo.yaml"),
        [
            f"output={folder}/run",
            f"requests={requests}",
            f"corpus={SAMPLE}/corpus.jsonl",
            f"qrels={SAMPLE}/qrels.txt",
            "retrieve.depth=10",
            "decompose.n=2",
            "estimate=null",
            "judge.max_tokens=1",
            "select.selectors=[sum(tau=1), greedy-coverage(tau=3)]",
            "compress={method: llm, engine: llm, depth: 2, questions: both, max_tokens: 32}",
            "shard_queries=2",
        ],
    )
    return folder / "run", lancer.run(config)


def test_decompose_and_judge(run: tuple[Path, RunResult]) -> None:
    folder, result = run
    assert set(result.engines) == {"bm25", "llm"}, "all stages share one engine"

    coverage = pq.read_table(folder / "coverage.parquet").to_pylist()
    asked = {(r["query_id"], r["sub_question_id"]) for r in coverage}
    assert len(coverage) == 10 * len(asked)
    assert len({(r["query_id"], r["doc_id"], r["sub_question_id"]) for r in coverage}) == len(coverage)
    assert {r["status"] for r in coverage} == {"ok"}
    assert all(r["raw"] in "012345" and float(r["raw"]) == r["rating"] for r in coverage)

    ledger = pq.read_table(folder / "ledger.parquet").to_pylist()
    judged = [r for r in ledger if r["stage"] == "judge"]
    assert sum(r["pairs"] for r in judged) == sum(r["calls"] for r in judged) == len(coverage)
    assert all(0 < r["cached_tokens"] < r["prompt_tokens"] for r in judged), "pairs of one document share their prefix"
    assert all(r["latency_p50_s"] <= r["latency_p95_s"] <= r["latency_max_s"] for r in judged)
    tokens = sum(r["prompt_tokens"] + r["output_tokens"] for r in ledger if r["engine"] == "llm")
    assert tokens == sum(c.tokens for c in result.engines["llm"]), "the ledger's tokens are the engine's own"

    for name in ("run.trec", "run.greedy-coverage(tau=3).trec", "first_stage.trec"):
        assert len(read_run(folder / name).rankings) == 4
        assert 0 <= result.measures[name]["alpha_nDCG@10"] <= 1


def test_sentences_are_extracted(run: tuple[Path, RunResult]) -> None:
    folder, result = run
    documents = map(json.loads, (SAMPLE / "corpus.jsonl").read_text().splitlines())
    texts = {row["doc_id"]: f"{row['title']}\n{row['text']}" for row in documents}
    rows = pq.read_table(folder / "compressed.parquet").to_pylist()
    check_spans(rows, texts)
    assert len(rows) == 8
    assert {r["status"] for r in rows} <= {"ok", "nothing", "unreadable"}
    assert all(s["score"] is None for r in rows for s in r["spans"])
    assert all(r["raw"] for r in rows)
    whole = [r for r in rows if r["status"] == "unreadable"]
    assert all(len(r["spans"]) == len(sentence_spans(texts[r["doc_id"]])) for r in whole)
    total = next(s for s in result.stages if s.stage == "compress")
    assert total.calls >= len(rows)
    assert total.cached_tokens > 0, "the prompts of a query share their request"
