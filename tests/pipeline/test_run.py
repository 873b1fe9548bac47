"""The whole path on a real Ray, with real engines."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

import lancer
from lancer import schema
from lancer.errors import InputError, OutputError
from lancer.formats.runs import read_run
from lancer.pipeline.summary import RunResult
from lancer.storage import Storage
from tests.pipeline.small import DOCUMENTS, DRAWN, REQUESTS, small_config
from tests.s3_servers import S3Server

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("session_ray")]

PAIRS = sum(len(questions) for _, questions in REQUESTS.values()) * len(DOCUMENTS)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunResult]:
    """A finished small run; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("finished")
    return folder, lancer.run(small_config(folder))


def test_every_query_has_a_complete_ranking(finished: tuple[Path, RunResult]) -> None:
    folder, result = finished
    rankings = read_run(folder / "run" / "run.trec").rankings
    assert rankings.keys() == REQUESTS.keys()
    assert all(sorted(d for d, _ in ranking) == sorted(DOCUMENTS) for ranking in rankings.values())
    assert rankings["q1"][0][0] in "ab"  # the depth of the lake, its fish
    assert rankings["q3"][0][0] in "ef"  # when the bridge was built, who paid
    first = read_run(folder / "run" / "first_stage.trec").rankings
    assert [d for d, _ in first["q1"]] == list(DOCUMENTS)
    assert result.queries == len(REQUESTS)


def test_tables_have_their_pinned_schemas_and_a_row_per_pair(finished: tuple[Path, RunResult]) -> None:
    run = finished[0] / "run"
    for name, expected in (
        ("ranking.parquet", schema.RANKING_SCHEMA),
        ("coverage.parquet", schema.COVERAGE_SCHEMA),
        ("ledger.parquet", schema.LEDGER_SCHEMA),
        ("failures.parquet", schema.FAILURE_SCHEMA),
    ):
        for part in (run / name).iterdir():
            assert pq.read_schema(part).remove_metadata().equals(expected)
    coverage = pq.read_table(run / "coverage.parquet")
    assert coverage.num_rows == PAIRS
    assert set(coverage["status"].to_pylist()) == {"ok"}
    assert coverage["rating"].null_count == PAIRS
    assert coverage["probability"].null_count == 0
    ledger = pq.read_table(run / "ledger.parquet").to_pylist()
    assert sum(r["pairs"] for r in ledger) == PAIRS
    assert {(r["query_id"], r["stage"]) for r in ledger} == {
        (q, s) for q in REQUESTS for s in ("retrieve", "decompose", "estimate", "select")
    }


def test_run_json_tells_how_it_was_made(finished: tuple[Path, RunResult]) -> None:
    record = json.loads((finished[0] / "run" / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["config"]["retrieve"]["depth"] == 8
    assert [s["name"] for s in record["stages"]] == ["retrieve", "decompose", "estimate", "select"]
    assert record["versions"]["ray"] == "2.60.0"


def _bytes(run: Path) -> dict[str, bytes]:
    names = [run / "run.trec", run / "first_stage.trec"]
    names += sorted((run / "ranking.parquet").iterdir()) + sorted((run / "coverage.parquet").iterdir())
    return {str(p.relative_to(run)): p.read_bytes() for p in names}


def test_one_worker_gives_the_same_bytes_as_two_and_two_engines(
    finished: tuple[Path, RunResult], tmp_path: Path
) -> None:
    config = small_config(finished[0], f"output={tmp_path}/other", "ray.workers=1", "engines.scorer.replicas=2")
    lancer.run(config)
    assert _bytes(tmp_path / "other") == _bytes(finished[0] / "run")


def test_dense_retrieval_and_the_matrix_share_an_engine_and_the_kept_embeddings(tmp_path: Path) -> None:
    dense = ("retrieve={source: dense, engine: scorer, depth: 3}", f"engines.scorer.embeddings={tmp_path}/kept")
    result = lancer.run(small_config(tmp_path, *dense))
    assert set(result.engines) == {"scorer"}
    assert len(list((tmp_path / "kept").rglob("part-*.parquet"))) == 1
    rankings = read_run(tmp_path / "run" / "first_stage.trec").rankings
    assert {len(ranking) for ranking in rankings.values()} == {3}
    assert rankings["q3"][0][0] in "efg"  # a history of the bridge
    assert "dense:estimate:sum(tau=0)" in (tmp_path / "run" / "run.trec").read_text()
    ledger = pq.read_table(tmp_path / "run/ledger.parquet").to_pylist()
    assert {r["engine"] for r in ledger if r["stage"] == "retrieve"} == {"scorer"}
    asked = {r["query_id"]: r["prompt_tokens"] for r in ledger if r["stage"] == "estimate"}
    assert max(asked.values()) < 40, "sub-questions alone"
    before = _bytes(tmp_path / "run")
    elsewhere = small_config(tmp_path, *dense, f"output={tmp_path}/other", f"engines.scorer.embeddings={tmp_path}/anew")
    lancer.run(elsewhere)
    assert _bytes(tmp_path / "other") == before


def test_a_finished_run_goes_on_without_work_and_a_new_selector_without_engines(tmp_path: Path) -> None:
    config = small_config(tmp_path, DRAWN)
    lancer.run(config)
    before = _bytes(tmp_path / "run")
    again = lancer.run(config)
    assert not again.engines
    assert [(s.stage, s.queries, s.reused_queries) for s in again.stages] == [
        (name, 4, 4) for name in ("retrieve", "decompose", "estimate", "select")
    ]
    assert _bytes(tmp_path / "run") == before

    selected = lancer.run(small_config(tmp_path, DRAWN, "select.selectors=[greedy-coverage(tau=0.5), max]"))
    assert not selected.engines
    assert [s.reused_queries for s in selected.stages] == [4, 4, 4, 0]
    assert "greedy-coverage(tau=0.5)" in (tmp_path / "run" / "run.trec").read_text()
    assert (tmp_path / "run" / "run.max.trec").exists()
    tables = pq.read_table(tmp_path / "run" / "ranking.parquet")
    assert set(tables["selector"].to_pylist()) == {"greedy-coverage(tau=0.5)", "max"}

    back = lancer.run(config)
    assert [s.reused_queries for s in back.stages] == [4, 4, 4, 4]
    assert _bytes(tmp_path / "run") == before

    with pytest.raises(OutputError, match="holds a run already"):
        lancer.run(config, mode="fail-if-exists")
    requests = tmp_path / "requests.jsonl"
    requests.write_text(requests.read_text().replace("the lake in the seasons", "the lake in winter"))
    lancer.run(config)  # one request changed
    requests.write_text(requests.read_text().replace('"query_id": "q', '"query_id": "other'))
    with pytest.raises(InputError, match="has no query of the requests"):
        lancer.run(config)
    for name in ("first.run", "sub_questions.jsonl"):
        other = tmp_path / name
        other.write_text(re.sub(r"\bq(\d)", r"other\1", other.read_text()))
    with pytest.raises(OutputError, match="holds another run: none of its requests is among these"):
        lancer.run(config)
    assert lancer.run(config, mode="overwrite").queries == 4


def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    for mode in ("resume", "overwrite"):
        with pytest.raises(OutputError, match=r"holds files, but no run\.json"):
            lancer.run(config, mode=mode)
    assert (tmp_path / "run" / "thesis.txt").read_text() == "mine"


def test_a_candidate_without_text_is_kept_and_not_scored(tmp_path: Path) -> None:
    config = small_config(tmp_path, DRAWN)
    run = tmp_path / "first.run"
    run.write_text(run.read_text() + "q1 Q0 unknown 9 1.0 first\n")
    result = lancer.run(small_config(tmp_path, DRAWN, "retrieve.depth=9"))
    assert config.retrieve.depth == 8
    assert "unknown" in [d for d, _ in read_run(tmp_path / "run" / "run.trec").rankings["q1"]]
    cells = [r for r in pq.read_table(tmp_path / "run" / "coverage.parquet").to_pylist() if r["doc_id"] == "unknown"]
    assert [(c["status"], c["probability"]) for c in cells] == [("no_text", None)] * 2
    assert result.stages[0].failures == {"no_text": 1}
    assert any("1 of 9 candidates have no text" in note for note in result.notes)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished small run whose probabilities mean nothing."""
    folder = tmp_path_factory.mktemp("drawn")
    lancer.run(small_config(folder, DRAWN))
    return folder


@pytest.mark.s3
def test_a_run_on_an_object_store_is_read_back_with_pyarrow(drawn: Path, s3_server: S3Server) -> None:
    bucket = s3_server.create_bucket()
    output = f"s3://{bucket}/campaign/run"
    config = small_config(drawn, DRAWN, f"output={output}", f"storage.endpoint_override={s3_server.endpoint}")
    lancer.run(config)
    assert not lancer.run(config).engines, "a finished run on S3 goes on without work"

    host = s3_server.endpoint.removeprefix("http://")
    files = pafs.S3FileSystem(
        endpoint_override=host,
        scheme="http",
        access_key=os.environ["AWS_ACCESS_KEY_ID"],
        secret_key=os.environ["AWS_SECRET_ACCESS_KEY"],
        region="us-east-1",
    )
    coverage = pq.read_table(f"{bucket}/campaign/run/coverage.parquet", filesystem=files)
    assert coverage.num_rows == PAIRS
    with files.open_input_stream(f"{bucket}/campaign/run/run.trec") as stream:
        assert stream.read() == (drawn / "run" / "run.trec").read_bytes()
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in Storage(config.storage).read(f"{output}/run.json").decode()
