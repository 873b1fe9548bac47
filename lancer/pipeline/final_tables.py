"""A finished shard's rows, one per query, as its parts of the final tables: one row per document, cell or record.

The cells, which are many, are made column by column: that takes a seventh of the time it takes one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancer import schema
from lancer.formats.runs import scores_for
from lancer.schema import CellStatus, Scale

Numbers = npt.NDArray[np.int64]


def final_tables(table: pa.Table, scale: Scale, orders: Sequence[str] = ()) -> dict[str, pa.Table]:
    """The final tables of one shard, by their names in the run folder. `orders`: those that reranking made."""
    columns = ["query_id", "candidates", "rankings", schema.COMPRESSED.name]
    columns += [schema.order_field(name).name for name in orders]
    rows = table.select([name for name in columns if name in table.column_names]).to_pylist()
    tables = {
        "ranking.parquet": pa.Table.from_pylist(list(_ranking(rows, orders)), schema=schema.RANKING_SCHEMA),
        "coverage.parquet": _coverage(table, scale),
        "ledger.parquet": _records(table, "ledger", schema.LEDGER_SCHEMA),
        "failures.parquet": _records(table, "failures", schema.FAILURE_SCHEMA),
    }
    if schema.COMPRESSED.name in table.column_names:
        tables["compressed.parquet"] = pa.Table.from_pylist(list(_compressed(rows)), schema=schema.COMPRESSED_SCHEMA)
    return tables


def _records(table: pa.Table, name: str, target: pa.Schema) -> pa.Table:
    return pa.table(_column(table, name).flatten().flatten(), schema=target)


def _ranking(rows: Sequence[dict[str, Any]], orders: Sequence[str]) -> Iterator[dict[str, Any]]:
    for row in rows:
        first = {c["doc_id"]: rank for rank, c in enumerate(row["candidates"], start=1)}
        for ranking in _rankings(row, orders):
            doc_ids = ranking["doc_ids"]
            scores = scores_for(len(doc_ids))
            for rank, (doc_id, score, covers) in enumerate(
                zip(doc_ids, scores, ranking["covers"], strict=True), start=1
            ):
                yield {
                    "query_id": row["query_id"],
                    "selector": ranking["selector"],
                    "doc_id": doc_id,
                    "rank": rank,
                    "score": score,
                    "first_stage_rank": first[doc_id],
                    "covers": covers,
                    "kept": doc_id in ranking["kept"],
                }


def _rankings(row: dict[str, Any], orders: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The named orders, then the selectors' rankings, or what there is without selectors; each with what was kept."""
    doc_ids = [c["doc_id"] for c in row["candidates"]]
    kept = set(doc_ids)
    last = schema.FIRST_STAGE
    for name in orders:
        order = row[schema.order_field(name).name]
        doc_ids, last = order["doc_ids"], schema.RERANK
        kept = set(doc_ids[: order["kept"]])
        yield {"selector": f"{schema.RERANK}.{name}", "doc_ids": doc_ids, "covers": [[]] * len(doc_ids), "kept": kept}
    alone = {"selector": last, "doc_ids": doc_ids, "covers": [[]] * len(doc_ids)}
    for ranking in row.get("rankings") or [alone]:
        yield ranking | {"kept": kept}


def _compressed(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        for rank, document in enumerate(row[schema.COMPRESSED.name], start=1):
            yield {"query_id": row["query_id"], "rank": rank, **document}


def _coverage(table: pa.Table, scale: Scale) -> pa.Table:
    if schema.SUB_QUESTIONS.name not in table.column_names:
        return schema.COVERAGE_SCHEMA.empty_table()
    candidates, sub_questions = _column(table, "candidates"), _column(table, "sub_questions")
    questions = _lengths(sub_questions)
    # of each candidate: its query, how many cells it has, and where its query's sub-questions begin
    query = np.repeat(np.arange(table.num_rows), _lengths(candidates))
    cells = questions[query]
    begin = (np.cumsum(questions) - questions)[query]
    candidate = np.repeat(np.arange(len(query)), cells)  # of each cell
    question = np.repeat(begin, cells) + _counted(cells)
    fields = schema.MATRIX[scale]
    status = _cells(table, fields.status)
    columns = [
        _column(table, "query_id").take(query[candidate]),
        candidates.flatten().field("doc_id").take(candidate),
        pa.array(_counted(_lengths(candidates))[candidate] + 1, pa.int32()),
        sub_questions.flatten().field("id").take(question),
        sub_questions.flatten().field("text").take(question),
        _cells(table, schema.RATINGS, len(status)),  # a cascade has both
        _cells(table, schema.PROBABILITIES, len(status)),
        pc.if_else(pc.equal(status, ""), str(CellStatus.error), status),
        pc.fill_null(_cells(table, fields.raw, len(status)), ""),
        _cut_characters(table).take(candidate),
    ]
    kept = pc.not_equal(status, str(CellStatus.not_kept))
    return pa.table(columns, schema=schema.COVERAGE_SCHEMA).filter(kept)


def _column(table: pa.Table, name: str) -> pa.Array:
    column = table[name].combine_chunks()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _cells(table: pa.Table, field: pa.Field, count: int = 0) -> pa.Array:
    """A matrix per query, row by row, as one column; `count` nulls where there is none."""
    if field.name not in table.column_names:
        return pa.nulls(count, field.type.value_type.value_type)
    return _column(table, field.name).flatten().flatten()


def _cut_characters(table: pa.Table) -> pa.Array:
    """Of each candidate; null for those of a query that was not judged."""
    counts = _lengths(_column(table, "candidates")).tolist()
    name = schema.CUT_CHARACTERS.name
    cut = table[name].to_pylist() if name in table.column_names else [None] * len(counts)
    return pa.array([c for of, n in zip(cut, counts, strict=True) for c in of or [None] * n], pa.int32())


def _lengths(lists: pa.ListArray) -> Numbers:
    lengths: Numbers = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _counted(lengths: Numbers) -> Numbers:
    """0, 1, … for each of several lists, one after another."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
