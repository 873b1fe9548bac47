"""Recorded answers of RankVicuna through a whole run: the published rankings come out (castorini/rank_llm)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import lancer
from lancer.formats.runs import read_run

pytestmark = [pytest.mark.ray, pytest.mark.shared, pytest.mark.usefixtures("session_ray")]

WINDOWS = 9  # of 20, in steps of 10, over 100 documents


def doc_ids(run: Path) -> dict[str, list[str]]:
    return {query_id: [d for d, _ in ranked] for query_id, ranked in read_run(run).rankings.items()}


def test_the_published_rankings_are_reproduced(shared_data: Path, tmp_path: Path) -> None:
    data = shared_data / "listwise-recorded"
    first = doc_ids(data / "first_stage.run")
    with gzip.open(data / "prompts_responses.jsonl.gz", "rt", encoding="utf-8") as lines:
        answers = [json.loads(line)["response"] for line in lines]
    assert len(answers) == WINDOWS * len(first)
    recorded = [{"query_id": list(first)[i // WINDOWS], "text": text} for i, text in enumerate(answers)]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in recorded))
    texts = dict(line.split("\t") for line in (data / "queries.tsv").read_text().splitlines())
    (tmp_path / "requests.tsv").write_text("".join(f"{q}\t{texts[q]}\n" for q in first))  # as they were recorded
    (tmp_path / "config.yaml").write_text(
        f"""\
output: {tmp_path}/run
requests: {tmp_path}/requests.tsv
corpus: {data}/docs.jsonl.gz
retrieve: {{source: run, run: {data}/first_stage.run}}
rerank: {{method: listwise, engine: recorded}}
shard_queries: 2
engines:
  recorded: {{kind: replay, path: {tmp_path}/answers.jsonl, order: recorded, strict: true}}
"""
    )
    lancer.run(lancer.load_config(str(tmp_path / "config.yaml")))
    assert doc_ids(tmp_path / "run" / "run.trec") == doc_ids(data / "reranked.run")
    ledger = [r for r in pq.read_table(tmp_path / "run/ledger.parquet").to_pylist() if r["stage"] == "rerank.listwise"]
    assert {r["query_id"]: r["calls"] for r in ledger} == dict.fromkeys(first, WINDOWS)
    assert pq.read_table(tmp_path / "run/failures.parquet").num_rows == 0
    assert read_run(tmp_path / "run" / "run.trec").tag == "given:listwise(depth=100,window=20,step=10,passes=1)"
