"""Stored coverage matrices, one query at a time: a run's own table, or rating files of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

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

TABLE: Final = "coverage.parquet"
RANKINGS: Final = "ranking.parquet"


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

        InputError: a document without a token count, a value outside the scale.
        """
        place = {doc_id: i for i, doc_id in enumerate(self.doc_ids)}
        second = None
        if second_order is not None:
            named = dict.fromkeys(place[d] for d in second_order if d in place)
            second = np.array([*named, *(i for i in place.values() if i not in named)], dtype=np.int64)
        counts = None
        if token_counts is not None:
            lacking = next((d for d in self.doc_ids if d not in token_counts), None)
            if lacking is not None:
                raise InputError(f"query {self.query_id!r}: document {lacking!r} has no token count")
            counts = np.array([token_counts[d] for d in self.doc_ids], dtype=np.int64)
        values = np.array([[np.nan if v is None else v for v in row] for row in self.values], dtype=np.float64)
        shape = (len(self.doc_ids), len(self.sub_question_ids))
        try:
            return CoverageMatrix(values.reshape(shape), self.scale, second_order=second, token_counts=counts)
        except InputError as error:
            raise InputError(f"query {self.query_id!r}: {error.message}") from None


def read_matrices(path: str, storage: Storage, run: Run | None, notes: list[str]) -> Iterator[StoredMatrix]:
    """The matrices of a run folder, a `coverage.parquet`, or a rating file (`lancer.formats.ratings`).

    `run` gives the candidates and their order; without it a rating file's own order stands. Queries and documents are
    matched by id: a document that only the run has gets a row without values, a query that only the run has a matrix
    without sub-questions; what only the file has is left out. All are counted in `notes`. A positional file needs its
    run and must have its shape.
    InputError: nothing in the file, nothing in common with the run, a query in two parts of a table.
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
    once = _each_once(stored, path)
    yield from once if run is None else _of_run(once, run, path, notes)


def _each_once(matrices: Iterator[StoredMatrix], path: str) -> Iterator[StoredMatrix]:
    seen: set[str] = set()
    empty = True
    for matrix in matrices:
        if matrix.query_id in seen:
            reason = f"query {matrix.query_id!r} is in two parts; carry the run to its end with `lancer run`"
            raise InputError(reason, file=path)
        seen.add(matrix.query_id)
        empty = empty and not matrix.sub_question_ids
        yield matrix
    if empty:
        raise InputError("holds no coverage matrix", file=path)


def _of_run(matrices: Iterator[StoredMatrix], run: Run, path: str, notes: list[str]) -> Iterator[StoredMatrix]:
    """The queries of the run: those with a matrix, then those without."""
    lacking = dropped = foreign = 0
    scale, left = Scale.rating, dict.fromkeys(run.rankings)
    for matrix in matrices:
        scale = matrix.scale
        if matrix.query_id not in left:
            foreign += 1
            continue
        del left[matrix.query_id]
        ordered, more_lacking, more_dropped = _in_order_of(run, matrix)
        lacking, dropped = lacking + more_lacking, dropped + more_dropped
        yield ordered
    if len(left) == len(run.rankings):
        raise InputError(f"has no query of the run; e.g. {next(iter(left))!r} is in the run", file=path)
    for query_id in left:
        doc_ids = [d for d, _ in run.rankings[query_id]]
        yield StoredMatrix(query_id, doc_ids, [], [[] for _ in doc_ids], scale)
    for what, count in (
        ("documents of the run without values, counted 0", lacking),
        ("documents with values that the run lacks, left out", dropped),
        ("queries of the run without a matrix, in the run's order", len(left)),
        ("queries with a matrix that the run lacks, left out", foreign),
    ):
        if count:
            notes.append(f"{what}: {count}")


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
    table = _read(uri, storage, schema.COVERAGE_SCHEMA)
    scale = Scale.rating if table["probability"].null_count == table.num_rows else Scale.probability
    name = "rating" if scale is Scale.rating else "probability"
    queries = _candidates(uri, storage)
    columns = ("query_id", "first_stage_rank", "doc_id", "sub_question_id", name)
    for query_id, rank, doc_id, question, value in zip(*(table[c].to_pylist() for c in columns), strict=True):
        queries.setdefault(query_id, {}).setdefault((rank, doc_id), {})[question] = value
    for query_id, documents in queries.items():
        order = sorted(documents)
        questions = list(dict.fromkeys(q for key in order for q in documents[key]))
        values = [[documents[key].get(q) for q in questions] for key in order]
        yield StoredMatrix(query_id, [doc_id for _, doc_id in order], questions, values, scale)


def _candidates(uri: str, storage: Storage) -> dict[str, dict[tuple[int, str], dict[str, float | None]]]:
    """The candidates of a run's part by (rank, doc_id), without cells; {} where no rankings lie beside it.

    A query without sub-questions has no row in a coverage table, but it has a ranking: the first stage's.
    """
    folder, _, name = uri.rpartition("/")
    rankings = join(folder.removesuffix(TABLE), RANKINGS, name)
    if folder.rsplit("/", 1)[-1] != TABLE or not storage.exists(rankings):
        return {}
    table = _read(rankings, storage, schema.RANKING_SCHEMA)
    queries: dict[str, dict[tuple[int, str], dict[str, float | None]]] = {}
    columns = ("query_id", "first_stage_rank", "doc_id")
    for query_id, rank, doc_id in zip(*(table[c].to_pylist() for c in columns), strict=True):
        queries.setdefault(query_id, {})[rank, doc_id] = {}
    return queries


def _read(uri: str, storage: Storage, expected: pa.Schema) -> pa.Table:
    with storage.open(uri) as stream:
        try:
            table = pq.read_table(pa.PythonFile(stream))
        except pa.ArrowInvalid as error:
            raise InputError(f"is no Parquet file: {error}", file=uri) from None
    if not table.schema.remove_metadata().equals(expected):
        raise InputError("is no table of a run of this version", file=uri)
    return table


def _in_order_of(run: Run, matrix: StoredMatrix) -> tuple[StoredMatrix, int, int]:
    rows = dict(zip(matrix.doc_ids, matrix.values, strict=True))
    doc_ids = [d for d, _ in run.rankings[matrix.query_id]]
    empty: list[float | None] = [None] * len(matrix.sub_question_ids)
    values = [rows.get(d, empty) for d in doc_ids]
    ordered = StoredMatrix(matrix.query_id, doc_ids, matrix.sub_question_ids, values, matrix.scale)
    return ordered, sum(d not in rows for d in doc_ids), len(rows.keys() - set(doc_ids))
