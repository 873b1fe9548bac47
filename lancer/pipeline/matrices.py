"""Stored coverage matrices, one query at a time: a run's own table, or rating files of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lancer import schema
from lancer.errors import InputError
from lancer.formats.ratings import read_ratings
from lancer.formats.runs import Run
from lancer.schema import Scale
from lancer.selection import CoverageMatrix
from lancer.storage import Storage, join

TABLE = "coverage.parquet"


@dataclass(frozen=True)
class StoredMatrix:
    """`values[i][j]` is what candidate i says to sub-question j; candidates in first-stage order; null = no value."""

    query_id: str
    doc_ids: list[str]
    sub_question_ids: list[str]
    values: list[list[float | None]]
    scale: Scale

    def coverage_matrix(
        self, *, second_order: Sequence[str] | None = None, token_counts: Mapping[str, int] | None = None
    ) -> CoverageMatrix:
        """For a selector. Documents the second order lacks come last in it, in first-stage order.

        InputError: a document without a token count.
        """
        place = {doc_id: i for i, doc_id in enumerate(self.doc_ids)}
        second = None
        if second_order is not None:
            named = [place[d] for d in second_order if d in place]
            second = np.array([*named, *(i for i in place.values() if i not in set(named))], dtype=np.int64)
        counts = None
        if token_counts is not None:
            lacking = next((d for d in self.doc_ids if d not in token_counts), None)
            if lacking is not None:
                raise InputError(f"query {self.query_id!r}: document {lacking!r} has no token count")
            counts = np.array([token_counts[d] for d in self.doc_ids], dtype=np.int64)
        values = np.array([[np.nan if v is None else v for v in row] for row in self.values], dtype=np.float64)
        shape = (len(self.doc_ids), len(self.sub_question_ids))
        return CoverageMatrix(values.reshape(shape), self.scale, second_order=second, token_counts=counts)


def read_matrices(path: str, storage: Storage, run: Run | None, notes: list[str]) -> Iterator[StoredMatrix]:
    """The matrices of a run folder, a `coverage.parquet`, or a rating file (`lancer.formats.ratings`).

    `run` gives the candidates and their order; without it a rating file's own order stands. Documents are matched by
    id: those that only the run has get a row without values, those that only the file has are left out; both are
    counted in `notes`. A positional file needs its run and must have its shape.
    """
    parts = coverage_parts(path, storage)
    if parts:
        stored = (matrix for part in parts for matrix in _of_part(part, storage))
    else:
        ratings = read_ratings(path, run, storage)
        stored = (
            StoredMatrix(q, m.doc_ids, m.sub_question_ids, [list(row) for row in m.ratings], Scale.rating)
            for q, m in ratings.items()
        )
    lacking = dropped = 0
    for matrix in stored:
        if run is not None:
            matrix, more_lacking, more_dropped = _in_order_of(run, matrix)
            lacking, dropped = lacking + more_lacking, dropped + more_dropped
        yield matrix
    if lacking:
        notes.append(f"documents of the run without values, counted 0: {lacking}")
    if dropped:
        notes.append(f"documents with values that the run lacks, left out: {dropped}")


def coverage_parts(path: str, storage: Storage) -> list[str]:
    """The Parquet files of a run folder's coverage table, of the table itself, or the one file; [] for other files."""
    if storage.exists(path):
        return [path] if path.endswith(".parquet") else []
    below = [entry.uri for entry in storage.list(path) if entry.uri.endswith(".parquet")]
    inside = [uri for uri in below if uri.startswith(join(path, TABLE) + "/")]
    found = inside or (below if path.rstrip("/").endswith(TABLE) else [])
    if not found:
        raise InputError(f"no such file, nor a folder with a {TABLE}", file=path)
    return found


def _of_part(uri: str, storage: Storage) -> Iterator[StoredMatrix]:
    with storage.open(uri) as stream:
        try:
            table = pq.read_table(pa.PythonFile(stream))
        except pa.ArrowInvalid as error:
            raise InputError(f"is no Parquet file: {error}", file=uri) from None
    if not table.schema.remove_metadata().equals(schema.COVERAGE_SCHEMA):
        raise InputError("is no coverage table of this version", file=uri)
    scale = Scale.rating if table["probability"].null_count == table.num_rows else Scale.probability
    name = "rating" if scale is Scale.rating else "probability"
    columns = ("query_id", "doc_id", "first_stage_rank", "sub_question_id", name)
    queries: dict[str, dict[tuple[int, str], dict[str, float | None]]] = {}
    for query_id, doc_id, rank, question, value in zip(*(table[c].to_pylist() for c in columns), strict=True):
        queries.setdefault(query_id, {}).setdefault((rank, doc_id), {})[question] = value
    for query_id, documents in queries.items():
        order = sorted(documents)
        questions = list(documents[order[0]])
        values = [[documents[key].get(q) for q in questions] for key in order]
        yield StoredMatrix(query_id, [doc_id for _, doc_id in order], questions, values, scale)


def _in_order_of(run: Run, matrix: StoredMatrix) -> tuple[StoredMatrix, int, int]:
    rows = dict(zip(matrix.doc_ids, matrix.values, strict=True))
    doc_ids = [d for d, _ in run.rankings.get(matrix.query_id, [])] or matrix.doc_ids
    empty: list[float | None] = [None] * len(matrix.sub_question_ids)
    values = [rows.get(d, empty) for d in doc_ids]
    ordered = StoredMatrix(matrix.query_id, doc_ids, matrix.sub_question_ids, values, matrix.scale)
    return ordered, sum(d not in rows for d in doc_ids), len(rows.keys() - set(doc_ids))
