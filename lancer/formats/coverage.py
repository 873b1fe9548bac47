"""Stored coverage matrices, one query at a time: a run's own `coverage.parquet`, or rating files of others.

What `lancer select` ranks by and `lancer evaluate` computes Cov from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lancer import schema
from lancer.errors import InputError
from lancer.formats.ratings import read_ratings
from lancer.formats.runs import Run
from lancer.schema import CellStatus, Scale
from lancer.storage import Storage, join

TABLE: Final = "coverage.parquet"
RANKINGS: Final = "ranking.parquet"
FIRST_STAGE: Final = "first_stage.trec"
_ORDER: Final = f"{schema.RERANK}."  # the beginning of what a ranking table calls a named order

_Rows = dict[tuple[int, str], dict[str, float | None]]  # (first-stage rank, doc_id) -> sub-question id -> value


@dataclass(frozen=True)
class StoredMatrix:
    """`values[i][j]` is what candidate i says to sub-question j; candidates in first-stage order; None = no value.

    `scale` is rating where there is no value at all. `order`: all candidates as the run's reranking left them, None
    without one; the first `kept` of them were asked about, the others were put behind.
    """

    query_id: str
    doc_ids: list[str]
    sub_question_ids: list[str]
    values: list[list[float | None]]
    scale: Scale
    order: list[str] | None = None
    kept: int = 0

    @property
    def behind(self) -> list[str]:
        """The candidates that reranking did not keep: they have no value because nobody asked."""
        return [] if self.order is None else self.order[self.kept :]


@dataclass
class _Query:
    """One query of a part: its cells, and the order that reranking left with the number of those kept."""

    documents: _Rows = field(default_factory=dict)
    order: list[str] | None = None
    kept: int = 0


def read_stored_matrices(
    path: str | Path, run: Run | None = None, storage: Storage | None = None
) -> Iterator[StoredMatrix]:
    """The matrices of a run folder, a `coverage.parquet`, or a file that `lancer.formats.ratings` reads.

    `run` belongs to a positional file. A query of a run folder that has no sub-question has a matrix without columns.
    InputError: no such file or table, a table of another schema, a query in two parts of it, no sub-question at all.
    """
    storage = storage or Storage()
    seen: set[str] = set()
    empty = True
    for matrix in _matrices(str(path), run, storage):
        if matrix.query_id in seen:
            reason = f"query {matrix.query_id!r} is in two parts; carry the run to its end with `lancer run`"
            raise InputError(reason, file=path)
        seen.add(matrix.query_id)
        empty = empty and not matrix.sub_question_ids
        yield matrix
    if empty:
        raise InputError("holds no coverage matrix", file=path)


def _matrices(path: str, run: Run | None, storage: Storage) -> Iterator[StoredMatrix]:
    parts = _parts(path, storage)
    for part in parts:
        yield from _of_part(part, storage)
    if not parts:
        for query_id, matrix in read_ratings(path, run, storage).items():
            values: list[list[float | None]] = [list(row) for row in matrix.ratings]
            yield StoredMatrix(query_id, matrix.doc_ids, matrix.sub_question_ids, values, Scale.rating)


def _parts(path: str, storage: Storage) -> list[str]:
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
    # Where an estimator was followed by a judge both columns have values, and the ratings are what is ranked by.
    probable = pc.and_(pc.equal(table["status"], str(CellStatus.ok)), pc.is_null(table["rating"]))
    scale = Scale.probability if pc.any(probable).as_py() else Scale.rating
    name = "rating" if scale is Scale.rating else "probability"
    queries = _candidates(uri, storage)
    columns = ("query_id", "first_stage_rank", "doc_id", "sub_question_id", name)
    for query_id, rank, doc_id, question, value in zip(*(table[c].to_pylist() for c in columns), strict=True):
        queries.setdefault(query_id, _Query()).documents.setdefault((rank, doc_id), {})[question] = value
    for query_id, query in queries.items():
        documents, order = query.documents, sorted(query.documents)
        questions = list(dict.fromkeys(q for key in order for q in documents[key]))
        values = [[documents[key].get(q) for q in questions] for key in order]
        doc_ids = [doc_id for _, doc_id in order]
        yield StoredMatrix(query_id, doc_ids, questions, values, scale, query.order, query.kept)


def _rankings_beside(uri: str, storage: Storage) -> str | None:
    """The part of the ranking table that belongs to one of the coverage table.

    It has the same name, but for the digest of its content that follows the last "-".
    """
    folder, _, name = uri.rpartition("/")
    if folder.rsplit("/", 1)[-1] != TABLE:
        return None
    beside = join(folder.removesuffix(TABLE), RANKINGS)
    if storage.exists(join(beside, name)):
        return join(beside, name)
    found = storage.list(beside, name.removesuffix(".parquet").rpartition("-")[0] + "-")
    return found[-1].uri if found else None


def _candidates(uri: str, storage: Storage) -> dict[str, _Query]:
    """The candidates of a run's part, without cells, and their order; {} where no rankings lie beside it.

    A query without sub-questions has no row in a coverage table, but it has a ranking: the first stage's. Nor has a
    candidate that reranking did not keep.
    """
    rankings = _rankings_beside(uri, storage)
    if rankings is None:
        return {}
    table = _read(rankings, storage, schema.RANKING_SCHEMA)
    queries: dict[str, _Query] = {}
    orders: dict[tuple[str, str], list[tuple[int, str, bool]]] = {}
    columns = ("query_id", "first_stage_rank", "doc_id", "selector", "rank", "kept")
    for query_id, first, doc_id, selector, rank, kept in zip(*(table[c].to_pylist() for c in columns), strict=True):
        queries.setdefault(query_id, _Query()).documents[first, doc_id] = {}
        if selector.startswith(_ORDER):
            orders.setdefault((query_id, selector), []).append((rank, doc_id, kept))
    for (query_id, _), ranked in orders.items():  # in the order of the steps: the last one stays
        queries[query_id].order = [doc_id for _, doc_id, _ in sorted(ranked)]
        queries[query_id].kept = sum(kept for _, _, kept in ranked)
    return queries


def _read(uri: str, storage: Storage, expected: pa.Schema) -> pa.Table:
    with storage.open(uri) as stream:
        try:
            table = pq.read_table(pa.PythonFile(stream), page_checksum_verification=True)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"is no Parquet file, or a damaged one: {error}", file=uri) from None
    lacking = [f"{f.name} ({f.type})" for f in expected if f not in list(table.schema.remove_metadata())]
    if lacking:
        raise InputError(f"is no such table of a run of this version: it lacks {', '.join(lacking)}", file=uri)
    return table
