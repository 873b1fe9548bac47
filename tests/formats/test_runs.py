"""Runs: one order whatever the order of the lines, and what is written reads back."""

from __future__ import annotations

import gzip
import io
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancer.errors import InputError, OutputError
from lancer.formats.runs import read_run, run_lines, scores_for, write_run
from lancer.storage import Storage, StorageConfig
from tests.s3_servers import S3Server

IDS = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=8)
LINES = st.lists(
    st.tuples(st.sampled_from("ab"), IDS, st.integers(0, 50), st.floats(-9, 9, width=32)),
    min_size=1,
    unique_by=(lambda line: (line[0], line[1]), lambda line: (line[0], line[2], line[3])),
)


def order_of(path: Path) -> list[tuple[str, str]]:
    return [(query, doc) for query, ranked in read_run(path).rankings.items() for doc, _ in ranked]


@given(lines=LINES, seed=st.integers(0, 99))
def test_line_order_is_irrelevant_where_score_and_rank_differ(
    lines: list[tuple[str, str, int, float]], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("run") / "a.run"
    texts = [f"{query} Q0 {doc} {rank} {score!r} t\n" for query, doc, rank, score in lines]
    path.write_text("".join(texts))
    before = read_run(path).rankings
    random.Random(seed).shuffle(texts)
    path.write_text("".join(texts))
    assert read_run(path).rankings == before


@given(rankings=st.dictionaries(IDS, st.lists(IDS, unique=True, min_size=1), min_size=1))
def test_round_trip(rankings: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("run") / "a.run"
    write_run(path, rankings.items(), "bm25:sum(tau=1)")
    run = read_run(path)
    assert {query: [doc for doc, _ in ranked] for query, ranked in run.rankings.items()} == rankings
    assert (run.tag, run.notes) == ("bm25:sum(tau=1)", [])


def test_written_lines() -> None:
    assert list(run_lines("q1", ["d9", "d1"], "t")) == ["q1 Q0 d9 1 2.0 t\n", "q1 Q0 d1 2 1.0 t\n"]
    assert list(run_lines("q1", [], "t")) == []


@pytest.mark.parametrize("n", [0, 1, 100, 100_000])
def test_scores_strictly_decrease_in_float32(n: int) -> None:
    scores = np.array(scores_for(n), dtype=np.float32)
    assert len(scores) == n
    assert (np.diff(scores) < 0).all()
    assert (scores > 0).all()


@pytest.mark.parametrize(
    ("query_id", "doc_ids", "tag", "says"),
    [
        ("q 1", ["d1"], "t", "query id 'q 1'"),
        ("q1", ["d1", ""], "t", "document id ''"),
        ("q1", ["d1", "d\t2"], "t", "has blanks"),
        ("q1", ["d1"], "sum(tau = 1)", "tag 'sum(tau = 1)'"),
        ("q1", ["d1", "d2", "d1"], "t", "ranks document 'd1' 2 times"),
    ],
)
def test_what_a_run_cannot_hold(query_id: str, doc_ids: list[str], tag: str, says: str) -> None:
    with pytest.raises(OutputError) as caught:
        list(run_lines(query_id, doc_ids, tag))
    assert says in str(caught.value)


def test_a_failed_write_leaves_the_old_run(tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    write_run(path, [("q1", ["d1"])], "old")
    with pytest.raises(OutputError, match="two rankings"):
        write_run(path, [("q1", ["d2"]), ("q1", ["d3"])], "new")
    assert path.read_text() == "q1 Q0 d1 1 1.0 old\n"


def test_writes_to_an_open_file() -> None:
    handle = io.BytesIO()
    write_run(handle, iter([("q1", ["d1"]), ("q2", ["d1"])]), "t")
    assert handle.getvalue() == b"q1 Q0 d1 1 1.0 t\nq2 Q0 d1 1 1.0 t\n"


def test_notes_count_what_was_normalised(tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    path.write_text(
        "# made by hand\n"
        "q1 Q0 d1 0 1 one\nq1 Q0 d2 1 2 one\nq2 Q0 d1 1 5 one\nq1 Q0 d1 2 1 two\nq1 Q0 d3 3 .5 one\n"
    )  # fmt: skip
    assert read_run(path).notes == [
        "comment lines skipped: 1",
        "queries whose lines are not together: 1",
        "repeated documents, best score kept: 1",
        "queries with ranks from 0: 1",
        "queries whose ranks contradict the scores or repeat: 1",
        "2 tags, the first is used: one, two",
    ]


def test_gzip_by_content_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.run"
    path.write_bytes(gzip.compress(b"q1 Q0 d1 1 2 t\n") + gzip.compress(b"q1 Q0 d2 2 1 t\n"))
    assert order_of(path) == [("q1", "d1"), ("q1", "d2")]


@pytest.mark.s3
@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_through_an_object_store(s3_server: S3Server) -> None:
    storage = Storage(StorageConfig(endpoint_override=s3_server.endpoint))
    uri = f"s3://{s3_server.create_bucket()}/runs/a.run"
    write_run(uri, [("q1", ["d2", "d1"])], "t", storage)
    assert read_run(uri, storage).rankings == {"q1": [("d2", 2.0), ("d1", 1.0)]}
    with pytest.raises(InputError, match="no such"):
        read_run(uri + ".gz", storage)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "queries", "documents", "tag"),
    [
        ("dl19-subquestions/candidates.bm25-judged-pool.run", 22, 2200, "bm25"),
        (
            "dl19-subquestions/candidates.splade_p_p_ensemble_distil.condensed.run",
            22,
            1235,
            "SPLADE_P_P_ENSEMBLE_DISTIL",
        ),
        ("lancer-duc04/data/crux-mds-duc04-runs/lsr-crux-mds-duc04.run", 50, 5000, "lsr-mds-duc04"),
        ("longeval26-task4/candidates.official-order.run", 47, 470, "official"),
        ("listwise-recorded/first_stage.run", 11, 1100, "bm25"),
        ("listwise-recorded/reranked.run", 11, 1100, "rank"),
        ("parity/trec_eval/results.test", 3, 1500, "STANDARD"),
        ("parity/ir_measures/compat.run", 2, 1927, "run"),
        ("parity/ir_measures/cwl.run", 3, 30, "R1"),
        ("parity/ndeval/argkp.run", 31, 3100, "bm25"),
    ],
)
def test_real_runs(shared_data: Path, name: str, queries: int, documents: int, tag: str) -> None:
    run = read_run(shared_data / name)
    assert (len(run.rankings), sum(map(len, run.rankings.values())), run.tag) == (queries, documents, tag)
    assert run.notes == []


@pytest.mark.shared
def test_words_after_the_tag_are_an_error(shared_data: Path) -> None:
    with pytest.raises(InputError, match=r"results\.trunc:1: 9 columns, 6 expected"):
        read_run(shared_data / "parity" / "trec_eval" / "results.trunc")
