"""Compression in a run: on a real Ray, and with MiniLM as the end of the funnel. By SmolLM2: test_run_models."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import lancer
from lancer import schema
from lancer.evaluation.run_stages import of_run
from lancer.storage import Storage
from tests.pipeline.compressed import check_spans
from tests.pipeline.small import DRAWN, REQUESTS, small_config

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("session_ray")]

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "configs" / "sample"


def compressed(run: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(run / "compressed.parquet").to_pylist()
    return rows


def sample_texts() -> dict[str, str]:
    rows = map(json.loads, (SAMPLE / "corpus.jsonl").read_text().splitlines())
    return {row["doc_id"]: f"{row['title']}\n{row['text']}" for row in rows}


def sample_config(folder: Path, queries: int, *overrides: str) -> lancer.config.Config:
    requests = folder / "requests.jsonl"
    requests.write_text("".join((SAMPLE / "requests.jsonl").read_text().splitlines(keepends=True)[:queries]))
    return lancer.load_config(
        str(ROOT / "configs/funnel.yaml"),
        [
            f"output={folder}/run",
            f"requests={requests}",
            f"corpus={SAMPLE}/corpus.jsonl",
            f"qrels={SAMPLE}/qrels.txt",
            f"decompose.path={SAMPLE}/sub_questions.jsonl",
            *overrides,
        ],
    )


def test_compression_comes_to_a_finished_run_and_goes_from_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    lancer.run(small_config(tmp_path, DRAWN))
    assert not (run / "compressed.parquet").exists()

    config = small_config(tmp_path, DRAWN, "compress={depth: 8}")
    result = lancer.run(config)
    assert [s.reused_queries for s in result.stages] == [4, 4, 4, 4, 0]
    rows = compressed(run)
    assert pq.read_table(run / "compressed.parquet").schema.remove_metadata().equals(schema.COMPRESSED_SCHEMA)
    assert {(r["query_id"], r["rank"]) for r in rows} == {(q, rank) for q in REQUESTS for rank in range(1, 9)}
    order = {(r["query_id"], r["rank"]): r["doc_id"] for r in pq.read_table(run / "ranking.parquet").to_pylist()}
    assert all(order[r["query_id"], r["rank"]] == r["doc_id"] for r in rows)
    assert {r["status"] for r in rows} == {"ok", "nothing"}
    assert all(s["score"] >= 0.4 for r in rows for s in r["spans"])

    again = lancer.run(config)
    assert not again.engines
    assert [s.reused_queries for s in again.stages] == [4] * 5
    stricter = lancer.run(small_config(tmp_path, DRAWN, "compress={depth: 8, threshold: 0.999}"))
    assert [s.reused_queries for s in stricter.stages] == [4, 4, 4, 4, 0]
    assert sum(s.calls for s in stricter.stages) == 0, "the scores are there already"
    assert {r["status"] for r in compressed(run)} == {"nothing"}

    lancer.run(small_config(tmp_path, DRAWN))
    assert not list(run.glob("compressed.parquet/*"))


@pytest.mark.java
def test_the_funnel_narrows_stage_by_stage(tmp_path: Path) -> None:
    lancer.run(sample_config(tmp_path, 4))
    steps = of_run(str(tmp_path / "run"), Storage())
    sizes = {step.name: [len(order) for order in step.orders.values()] for step in steps}
    assert list(sizes) == ["retrieve", "rerank.bi-encoder", "rerank.by-title", "select", "compress"]
    assert [sizes[name] for name in list(sizes)[:-1]] == [[100] * 4, [50] * 4, [15] * 4, [10] * 4]
    assert all(0 < size <= 10 for size in sizes["compress"])
    for before, after in itertools.pairwise(steps):
        assert all(set(after.orders[q]) <= set(before.orders[q]) for q in before.orders)
    rows = compressed(tmp_path / "run")
    check_spans(rows, sample_texts())
    assert all(len(r["spans"]) <= 3 for r in rows)
