"""The coverage table of a run, and rating files, as matrices."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lancer import schema
from lancer.errors import InputError
from lancer.formats.coverage import StoredMatrix, read_stored_matrices
from lancer.formats.runs import Run
from lancer.schema import Scale
from tests.coverage_tables import write_coverage, write_ranking


def matrices(path: Path | str, run: Run | None = None) -> dict[str, StoredMatrix]:
    return {matrix.query_id: matrix for matrix in read_stored_matrices(path, run)}


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
    found = matrices(f"{folder}{path}")
    assert found["q1"] == StoredMatrix("q1", ["b", "a"], ["1", "2"], [[0.25, None], [0.5, 1.0]], Scale.probability)
    assert found["q2"].values == [[None]]


def test_one_part_is_a_table_too(folder: Path) -> None:
    assert list(matrices(folder / "coverage.parquet" / "part-1.parquet")) == ["q2"]


def test_ratings_keep_their_scale(tmp_path: Path) -> None:
    write_coverage(tmp_path / "coverage.parquet" / "a.parquet", "q", [("a", 1, "1", 4)], Scale.rating)
    assert matrices(tmp_path)["q"].scale is Scale.rating


def test_rows_are_in_first_stage_order_whatever_the_order_in_the_file(tmp_path: Path) -> None:
    cells = [("z", 10, "1", 0.1), ("y", 9, "1", 0.2), ("x", 2, "1", 0.3)]
    write_coverage(tmp_path / "coverage.parquet" / "a.parquet", "q", cells)
    assert matrices(tmp_path)["q"].doc_ids == ["x", "y", "z"]


def test_the_parts_of_one_shard_differ_in_their_digests(tmp_path: Path) -> None:
    write_coverage(tmp_path / "coverage.parquet" / "shard-01-0a1b-5555.parquet", "q", [("a", 1, "1", 0.5)])
    write_ranking(tmp_path / "ranking.parquet" / "shard-01-0a1b-7777.parquet", "q", ["a", "b"])
    write_ranking(tmp_path / "ranking.parquet" / "shard-01-2c3d-8888.parquet", "q", ["c"])
    (matrix,) = read_stored_matrices(tmp_path)
    assert matrix.doc_ids == ["a", "b"]
    assert matrix.values == [[0.5], [None]]


def test_a_query_without_sub_questions_has_the_candidates_of_its_ranking(folder: Path) -> None:
    write_ranking(folder / "ranking.parquet" / "part-0.parquet", "q1", ["b", "a"], ("max", "sum(tau=0)"))
    write_ranking(folder / "ranking.parquet" / "part-1.parquet", "q3", ["e", "d"], ("max", "sum(tau=0)"))
    found = matrices(folder)
    assert found["q1"].values == [[0.25, None], [0.5, 1.0]]
    assert (found["q3"].doc_ids, found["q3"].sub_question_ids, found["q3"].values) == (["e", "d"], [], [[], []])


def test_rating_files_are_matrices(tmp_path: Path) -> None:
    run = Run({"q": [("b", 2.0), ("a", 1.0)]}, "bm25")
    (tmp_path / "positional.json").write_text(json.dumps({"q": [[5, 0], [-1, 3]]}))
    expected = StoredMatrix("q", ["b", "a"], ["1", "2"], [[5, 0], [None, 3]], Scale.rating)
    assert matrices(tmp_path / "positional.json", run) == {"q": expected}
    rows = [{"id": "q", "docid": "b", "rating": [5, 0]}, {"id": "q", "docid": "a", "rating": [-1, 3]}]
    (tmp_path / "crux.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert matrices(tmp_path / "crux.jsonl") == {"q": expected}


def test_what_cannot_be_read_is_named(folder: Path, tmp_path: Path) -> None:
    part = folder / "coverage.parquet" / "part-1.parquet"
    with pytest.raises(InputError, match=r"nothing: no such file, nor a folder with a coverage\.parquet"):
        matrices(tmp_path / "nothing")
    pq.write_table(pa.table({"query_id": pa.array(["q"])}), part)
    with pytest.raises(
        InputError, match=r"part-1\.parquet: is no such table of a run .* it lacks .*, rating \(float\)"
    ):
        matrices(folder)
    part.write_bytes(b"")
    with pytest.raises(InputError, match=r"part-1\.parquet: is no Parquet file"):
        matrices(folder)
    write_coverage(part, "q1", [("a", 1, "1", 0.5)])
    with pytest.raises(InputError, match="query 'q1' is in two parts; carry the run to its end with `lancer run`"):
        matrices(folder)


def test_a_run_without_a_matrix_is_none(tmp_path: Path) -> None:
    write_coverage(tmp_path / "coverage.parquet" / "a.parquet", "q", [])
    write_ranking(tmp_path / "ranking.parquet" / "a.parquet", "q", ["a", "b"], [schema.FIRST_STAGE])
    with pytest.raises(InputError, match="holds no coverage matrix"):
        matrices(tmp_path)
