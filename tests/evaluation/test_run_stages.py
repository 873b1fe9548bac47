"""What a run folder says of its stages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lancer import schema
from lancer.cli import main
from lancer.errors import InputError, UsageError
from lancer.evaluation.run_stages import of_run
from lancer.evaluation.stage_inputs import read_steps
from lancer.storage import Storage
from tests.coverage_tables import write_table

STAGES = ("retrieve", "rerank.mmr", "decompose", "estimate", "select", "compress")
SETTINGS: dict[str, Any] = {"select": {"selectors": ["max", "sum(tau=0)"]}, "compress": {"depth": 2}}
# Candidates a to d; reranking keeps c, b, a; the first selector prefers b, the second a; b has nothing to say.
ORDERS = {"rerank.mmr": "cbad", "max": "bcad", "sum(tau=0)": "abcd"}


def write_run(folder: Path, *, stages: tuple[str, ...] = STAGES, status: str = "finished") -> str:
    record = {
        "status": status,
        "stages": [{"name": name, "identity": {"settings": SETTINGS.get(name, {})}} for name in stages],
    }
    folder.mkdir(exist_ok=True)
    (folder / "run.json").write_text(json.dumps(record))
    for query_id in ("q2", "q1"):  # a part each
        ranking: list[dict[str, Any]] = [
            {
                "query_id": query_id, "selector": selector, "doc_id": doc_id, "rank": rank, "score": 9.0 - rank,
                "first_stage_rank": "abcd".index(doc_id) + 1, "covers": [], "kept": doc_id != "d",
            }
            for selector, order in ORDERS.items()
            for rank, doc_id in reversed(list(enumerate(order, start=1)))
        ]  # fmt: skip
        write_table(folder / "ranking.parquet" / f"{query_id}.parquet", ranking, schema.RANKING_SCHEMA)
        spans = [{"start": 0, "end": 10, "score": 0.5}]
        compressed = [
            {
                "query_id": query_id, "doc_id": doc_id, "rank": rank, "status": "ok" if kept else "nothing",
                "characters": 40, "text": "x" * 10 if kept else "", "spans": kept, "raw": "",
            }
            for rank, (doc_id, kept) in enumerate((("b", []), ("c", spans)), start=1)
        ]  # fmt: skip
        write_table(folder / "compressed.parquet" / f"{query_id}.parquet", compressed, schema.COMPRESSED_SCHEMA)
    return str(folder)


def test_the_stages_of_a_run_in_order_with_what_each_passes_on(tmp_path: Path) -> None:
    steps = of_run(write_run(tmp_path), Storage())
    assert {step.name: "".join(step.orders["q1"]) for step in steps} == {
        "retrieve": "abcd",
        "rerank.mmr": "cba",
        "select": "bc",
        "compress": "c",
    }
    assert all(set(step.orders) == {"q1", "q2"} for step in steps)
    assert steps[-1].notes == ("12.5% of the characters of 4 documents stay",)


def test_without_compression_all_that_was_kept_goes_on(tmp_path: Path) -> None:
    steps = of_run(write_run(tmp_path, stages=STAGES[:-1]), Storage())
    assert "".join(steps[-1].orders["q1"]) == "bca"


def test_kept_overrides_what_the_run_passed_on(tmp_path: Path) -> None:
    steps = read_steps([write_run(tmp_path)], [4, 2, 1, 1])
    assert [len(step.orders["q1"]) for step in steps] == [4, 2, 1, 1]
    with pytest.raises(UsageError, match=r"each of the 4 stages \(retrieve, rerank\.mmr, select, compress\)"):
        read_steps([str(tmp_path)], [4, 2])


def test_what_is_no_finished_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"neither a run file nor a run folder: it has no run\.json"):
        read_steps([str(tmp_path)])
    with pytest.raises(InputError, match="not finished"):
        read_steps([write_run(tmp_path, status="running")])
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        read_steps([str(tmp_path)])
    (tmp_path / "first.trec").write_text("q1 Q0 a 1 1.0 bm25\n")
    with pytest.raises(UsageError, match="one run folder, or run files in order"):
        read_steps([str(tmp_path), str(tmp_path / "first.trec")])


def test_a_table_of_another_version(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    write_table(tmp_path / "ranking.parquet" / "q3.parquet", [], schema.COVERAGE_SCHEMA)
    with pytest.raises(InputError, match="another schema than this version"):
        read_steps([folder])
    (tmp_path / "ranking.parquet" / "q3.parquet").write_text("x")
    with pytest.raises(InputError, match="no Parquet file"):
        read_steps([folder])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    qrels = tmp_path / "qrels"
    qrels.write_text("q1 1 c 1\nq1 2 d 1\nq2 1 c 1\n")
    assert main(["evaluate", "--stages", write_run(tmp_path / "run"), "--qrels", str(qrels), "--output", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("retrieve,4.0,recall,1.0,")
    assert lines[-2].startswith("compress,1.0,precision,1.0,")
