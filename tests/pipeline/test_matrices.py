from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lancer import schema
from lancer.errors import InputError
from lancer.formats.coverage import StoredMatrix
from lancer.formats.runs import Run
from lancer.pipeline.matrices import coverage_matrix, read_matrices
from lancer.schema import Scale
from lancer.storage import Storage

Cells = Sequence[tuple[str, int, str, float | None]]  # doc_id, first-stage rank, sub-question, value


def write_coverage(path: Path, query_id: str, cells: Cells, scale: Scale = Scale.probability) -> None:
    """One part of a coverage table with one query."""
    rows = [
        {
            "query_id": query_id,
            "doc_id": doc_id,
            "first_stage_rank": rank,
            "sub_question_id": question,
            "sub_question": f"{question}?",
            "rating": value if scale is Scale.rating else None,
            "probability": value if scale is Scale.probability else None,
            "status": "no_text" if value is None else "ok",
            "raw": "",
        }
        for doc_id, rank, question, value in cells
    ]
    write_table(path, rows, schema.COVERAGE_SCHEMA)


def write_ranking(path: Path, query_id: str, doc_ids: Sequence[str], selectors: Sequence[str] = ("max",)) -> None:
    """One part of a ranking table: every selector reverses the first stage's `doc_ids`."""
    rows = [
        {
            "query_id": query_id,
            "selector": selector,
            "doc_id": doc_id,
            "rank": len(doc_ids) - i,
            "score": float(i + 1),
            "first_stage_rank": i + 1,
            "covers": [],
        }
        for selector in selectors
        for i, doc_id in enumerate(doc_ids)
    ]
    write_table(path, rows, schema.RANKING_SCHEMA)


def write_table(path: Path, rows: list[dict[str, Any]], columns: pa.Schema) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=columns), path)


def matrices(path: Path | str, run: Run | None = None) -> tuple[dict[str, StoredMatrix], list[str]]:
    notes: list[str] = []
    return {m.query_id: m for m in read_matrices(str(path), Storage(), run, notes)}, notes


def run_of(**rankings: str) -> Run:
    """Documents are single letters, best first."""
    return Run({q: [(d, float(-i)) for i, d in enumerate(docs)] for q, docs in rankings.items()}, "bm25")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder of two parts; of q2 nothing is known, as its candidates have no text."""
    table = tmp_path / "run" / "coverage.parquet"
    write_coverage(
        table / "part-0.parquet", "q1", [("b", 1, "1", 0.25), ("b", 1, "2", None), ("a", 2, "1", 0.5), ("a", 2, "2", 1)]
    )
    write_coverage(table / "part-1.parquet", "q2", [("c", 1, "1", None)])
    return tmp_path / "run"


@pytest.mark.parametrize("path", ["", "/", "/coverage.parquet", "/coverage.parquet/"])
def test_a_run_folder_and_its_table_hold_the_same_matrices(folder: Path, path: str) -> None:
    found, notes = matrices(f"{folder}{path}")
    assert found["q1"] == StoredMatrix("q1", ["b", "a"], ["1", "2"], [[0.25, None], [0.5, 1.0]], Scale.probability)
    assert found["q2"].values == [[None]]
    assert notes == []


def test_one_part_is_a_table_too(folder: Path) -> None:
    assert list(matrices(folder / "coverage.parquet" / "part-1.parquet")[0]) == ["q2"]


def test_ratings_keep_their_scale(tmp_path: Path) -> None:
    write_coverage(tmp_path / "coverage.parquet" / "a.parquet", "q", [("a", 1, "1", 4)], Scale.rating)
    assert matrices(tmp_path)[0]["q"].scale is Scale.rating


def test_rows_are_in_first_stage_order_whatever_the_order_in_the_file(tmp_path: Path) -> None:
    cells = [("z", 10, "1", 0.1), ("y", 9, "1", 0.2), ("x", 2, "1", 0.3)]
    write_coverage(tmp_path / "coverage.parquet" / "a.parquet", "q", cells)
    assert matrices(tmp_path)[0]["q"].doc_ids == ["x", "y", "z"]


def test_a_query_without_sub_questions_has_the_candidates_of_its_ranking(folder: Path) -> None:
    write_ranking(folder / "ranking.parquet" / "part-0.parquet", "q1", ["b", "a"], ("max", "sum(tau=0)"))
    write_ranking(folder / "ranking.parquet" / "part-1.parquet", "q3", ["e", "d"], ("max", "sum(tau=0)"))
    found, _ = matrices(folder)
    assert found["q1"].values == [[0.25, None], [0.5, 1.0]]
    assert (found["q3"].doc_ids, found["q3"].sub_question_ids, found["q3"].values) == (["e", "d"], [], [[], []])
    assert coverage_matrix(found["q3"]).values.shape == (2, 0)


def test_a_run_gives_the_candidates_and_their_order(folder: Path) -> None:
    found, notes = matrices(folder, run_of(q1="xa", q3="cd"))
    assert found["q1"].doc_ids == ["x", "a"]
    assert found["q1"].values == [[None, None], [0.5, 1.0]]
    assert (found["q3"].doc_ids, found["q3"].values) == (["c", "d"], [[], []])
    assert notes == [
        "documents of the run without values, counted 0: 1",
        "documents with values that the run lacks, left out: 1",
        "queries of the run without a matrix, in the run's order: 1",
        "queries with a matrix that the run lacks, left out: 1",
    ]


def test_rating_files_are_matrices(tmp_path: Path) -> None:
    path = tmp_path / "ratings.json"
    path.write_text(json.dumps({"q": [[5, 0], [-1, 3]]}))
    found, _ = matrices(path, run_of(q="ba"))
    assert found["q"] == StoredMatrix("q", ["b", "a"], ["1", "2"], [[5, 0], [None, 3]], Scale.rating)


def test_what_cannot_be_read_is_named(folder: Path, tmp_path: Path) -> None:
    part = folder / "coverage.parquet" / "part-1.parquet"
    with pytest.raises(InputError, match=r"nothing: no such file, nor a folder with a coverage\.parquet"):
        matrices(tmp_path / "nothing")
    with pytest.raises(InputError, match="run: has no query of the run; e.g. 'q9' is in the run"):
        matrices(folder, run_of(q9="a"))
    pq.write_table(pa.table({"query_id": ["q"]}), part)
    with pytest.raises(InputError, match=r"part-1\.parquet: is no such table of a run of this version: it lacks"):
        matrices(folder)
    part.write_bytes(b"")
    with pytest.raises(InputError, match=r"part-1\.parquet: is no Parquet file"):
        matrices(folder)
    write_coverage(part, "q1", [("a", 1, "1", 0.5)])
    with pytest.raises(InputError, match="query 'q1' is in two parts; carry the run to its end with `lancer run`"):
        matrices(folder)
    write_coverage(part, "q2", [("a", 1, "1", 1.5)])
    with pytest.raises(InputError, match="query 'q2': 1.5 at candidate 1, sub-question 1 is outside the scale"):
        coverage_matrix(matrices(folder)[0]["q2"])


def test_a_run_without_a_matrix_is_none(tmp_path: Path) -> None:
    write_coverage(tmp_path / "coverage.parquet" / "a.parquet", "q", [])
    write_ranking(tmp_path / "ranking.parquet" / "a.parquet", "q", ["a", "b"], [schema.FIRST_STAGE])
    with pytest.raises(InputError, match="holds no coverage matrix"):
        matrices(tmp_path)


def test_a_second_order_that_lacks_documents_is_filled_up_in_first_stage_order() -> None:
    stored = StoredMatrix("q", list("abcd"), ["1"], [[1], [2], [3], [4]], Scale.rating)
    matrix = coverage_matrix(stored, second_order=["c", "foreign", "a", "c"])
    assert matrix.second_order is not None
    assert matrix.second_order.tolist() == [2, 0, 1, 3]


def test_every_document_needs_its_token_count() -> None:
    stored = StoredMatrix("q", ["a", "b"], ["1"], [[1], [None]], Scale.rating)
    matrix = coverage_matrix(stored, token_counts={"b": 2, "a": 1, "c": 3})
    assert matrix.token_counts is not None
    assert matrix.token_counts.tolist() == [1, 2]
    assert np.isnan(matrix.values[1, 0])
    with pytest.raises(InputError, match="query 'q': document 'b' has no token count"):
        coverage_matrix(stored, token_counts={"a": 1})
