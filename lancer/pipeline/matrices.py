"""Stored coverage matrices as selectors take them: with the candidates of a run, a second order, token counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lancer.errors import InputError
from lancer.formats.coverage import StoredMatrix, read_stored_matrices
from lancer.formats.ratings import is_positional
from lancer.formats.runs import Run
from lancer.schema import Scale
from lancer.selection import CoverageMatrix
from lancer.storage import Storage


def coverage_matrix(
    stored: StoredMatrix,
    *,
    second_order: Sequence[str] | None = None,
    token_counts: Mapping[str, int] | None = None,
) -> CoverageMatrix:
    """For a selector. Documents the second order lacks come last in it, in first-stage order.

    InputError: a document without a token count, a value outside the scale.
    """
    place = {doc_id: i for i, doc_id in enumerate(stored.doc_ids)}
    second = None
    if second_order is not None:
        named = dict.fromkeys(place[d] for d in second_order if d in place)
        second = np.array([*named, *(i for i in place.values() if i not in named)], dtype=np.int64)
    counts = None
    if token_counts is not None:
        lacking = next((d for d in stored.doc_ids if d not in token_counts), None)
        if lacking is not None:
            raise InputError(f"query {stored.query_id!r}: document {lacking!r} has no token count")
        counts = np.array([token_counts[d] for d in stored.doc_ids], dtype=np.int64)
    values = np.array([[np.nan if v is None else v for v in row] for row in stored.values], dtype=np.float64)
    shape = (len(stored.doc_ids), len(stored.sub_question_ids))
    try:
        return CoverageMatrix(values.reshape(shape), stored.scale, second_order=second, token_counts=counts)
    except InputError as error:
        raise InputError(f"query {stored.query_id!r}: {error.message}", field=error.field) from None


def read_matrices(path: str, storage: Storage, run: Run | None, notes: list[str]) -> Iterator[StoredMatrix]:
    """The matrices that `lancer.formats.coverage` reads from `path`, in the order of the candidates of `run`.

    Without a run a file's own order stands. Queries and documents are matched by id: a document that only the run has
    gets a row without values, a query that only the run has a matrix without sub-questions; what only the file has is
    left out. All are counted in `notes`. A positional file needs its run and must have its shape.
    InputError: what `read_stored_matrices` refuses, nothing in common with the run.
    """
    matrices = read_stored_matrices(path, run, storage)
    if run is None:
        yield from matrices
        return
    yield from _of_run(matrices, run, path, notes)
    if is_positional(path, storage):
        notes.append(f"{path} has no document ids: row i is taken for document i of the run")


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


def _in_order_of(run: Run, matrix: StoredMatrix) -> tuple[StoredMatrix, int, int]:
    rows = dict(zip(matrix.doc_ids, matrix.values, strict=True))
    doc_ids = [d for d, _ in run.rankings[matrix.query_id]]
    empty: list[float | None] = [None] * len(matrix.sub_question_ids)
    values = [rows.get(d, empty) for d in doc_ids]
    ordered = StoredMatrix(matrix.query_id, doc_ids, matrix.sub_question_ids, values, matrix.scale)
    return ordered, sum(d not in rows for d in doc_ids), len(rows.keys() - set(doc_ids))
