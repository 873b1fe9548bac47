"""Stored matrices with the candidates of a run, a second order, token counts. Reading them: formats/test_coverage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lancer.errors import InputError
from lancer.formats.coverage import StoredMatrix
from lancer.formats.runs import Run
from lancer.pipeline.matrices import coverage_matrix, read_matrices
from lancer.schema import Scale
from lancer.storage import Storage
from tests.coverage_tables import write_coverage


def run_of(**rankings: str) -> Run:
    """Documents are single letters, best first."""
    return Run({q: [(d, float(-i)) for i, d in enumerate(docs)] for q, docs in rankings.items()}, "bm25")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder of two parts."""
    cells = [("b", 1, "1", 0.25), ("b", 1, "2", None), ("a", 2, "1", 0.5), ("a", 2, "2", 1)]
    write_coverage(tmp_path / "coverage.parquet" / "part-0.parquet", "q1", cells)
    write_coverage(tmp_path / "coverage.parquet" / "part-1.parquet", "q2", [("c", 1, "1", None)])
    return tmp_path


def test_a_run_gives_the_candidates_and_their_order(folder: Path) -> None:
    notes: list[str] = []
    run = run_of(q1="xa", q3="cd")
    found = {m.query_id: m for m in read_matrices(str(folder), Storage(), run, notes)}
    assert found["q1"].doc_ids == ["x", "a"]
    assert found["q1"].values == [[None, None], [0.5, 1.0]]
    assert (found["q3"].doc_ids, found["q3"].values) == (["c", "d"], [[], []])
    assert coverage_matrix(found["q3"]).values.shape == (2, 0)
    assert notes == [
        "documents of the run without values, counted 0: 1",
        "documents with values that the run lacks, left out: 1",
        "queries of the run without a matrix, in the run's order: 1",
        "queries with a matrix that the run lacks, left out: 1",
    ]


def test_a_file_without_document_ids_is_told(tmp_path: Path) -> None:
    path = tmp_path / "ratings.json"
    path.write_text('{"q": [[5, 0], [-1, 3]]}')
    notes: list[str] = []
    (matrix,) = read_matrices(str(path), Storage(), run_of(q="ba"), notes)
    assert matrix == StoredMatrix("q", ["b", "a"], ["1", "2"], [[5, 0], [None, 3]], Scale.rating)
    assert notes == [f"{path} has no document ids: row i is taken for document i of the run"]


def test_nothing_in_common_with_the_run(folder: Path) -> None:
    with pytest.raises(InputError, match=r"has no query of the run; e\.g\. 'q9' is in the run"):
        list(read_matrices(str(folder), Storage(), run_of(q9="a"), []))


def test_a_value_outside_its_scale() -> None:
    stored = StoredMatrix("q2", ["a"], ["1"], [[1.5]], Scale.probability)
    with pytest.raises(InputError, match=r"query 'q2': 1\.5 at candidate 1, sub-question 1 is outside the scale"):
        coverage_matrix(stored)


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
