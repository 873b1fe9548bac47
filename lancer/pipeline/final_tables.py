"""A finished shard's rows, one per query, as its parts of the final tables: one row per document, cell or record.

Made column by column: with 100 documents and 10 sub-questions that takes a quarter of the time it takes row by row.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancer import schema
from lancer.formats.runs import scores_for
from lancer.schema import CellStatus, Scale

_MATRIX: Final = {
    Scale.rating: ("ratings", "rating_status"),
    Scale.probability: ("probabilities", "probability_status"),
}

Numbers = npt.NDArray[np.int64]


def final_tables(table: pa.Table, scale: Scale) -> dict[str, pa.Table]:
    """The final tables of one shard, by their names in the run folder."""
    return {
        "ranking.parquet": _ranking(table),
        "coverage.parquet": _coverage(table, scale),
        "ledger.parquet": _records(table, "ledger", schema.LEDGER_SCHEMA),
        "failures.parquet": _records(table, "failures", schema.FAILURE_SCHEMA),
    }


def _records(table: pa.Table, name: str, target: pa.Schema) -> pa.Table:
    return pa.table(_column(table, name).flatten().flatten(), schema=target)


def _ranking(table: pa.Table) -> pa.Table:
    candidates = _column(table, "candidates")
    if "rankings" in table.column_names:
        rankings = _column(table, "rankings")
        query = np.repeat(np.arange(table.num_rows), _lengths(rankings))  # of each ranking
        selectors, doc_ids, covers = (rankings.flatten().field(n) for n in ("selector", "doc_ids", "covers"))
        newly_covered = covers.flatten()
    else:
        query = np.arange(table.num_rows)
        selectors = pa.repeat(schema.FIRST_STAGE, table.num_rows)
        doc_ids = _members(candidates, "doc_id")
        newly_covered = pa.array([[]] * len(doc_ids.flatten()), pa.list_(pa.string()))
    lengths = _lengths(doc_ids)
    first = [{doc_id: i for i, doc_id in enumerate(ids, start=1)} for ids in _members(candidates, "doc_id").to_pylist()]
    columns = [
        _column(table, "query_id").take(np.repeat(query, lengths)),
        selectors.take(np.repeat(np.arange(len(lengths)), lengths)),
        doc_ids.flatten(),
        pa.array(_counted(lengths) + 1, pa.int32()),
        pa.array([score for n in lengths.tolist() for score in scores_for(n)], pa.float64()),
        pa.array([first[q][d] for q, ids in zip(query, doc_ids.to_pylist(), strict=True) for d in ids], pa.int32()),
        newly_covered,
    ]
    return pa.table(columns, schema=schema.RANKING_SCHEMA)


def _coverage(table: pa.Table, scale: Scale) -> pa.Table:
    if "sub_questions" not in table.column_names:
        return schema.COVERAGE_SCHEMA.empty_table()
    value_name, status_name = _MATRIX[scale]
    candidates, sub_questions = _column(table, "candidates"), _column(table, "sub_questions")
    questions = _lengths(sub_questions)
    # of each candidate: its query, how many cells it has, and where its query's sub-questions begin
    query = np.repeat(np.arange(table.num_rows), _lengths(candidates))
    cells = questions[query]
    begin = (np.cumsum(questions) - questions)[query]
    candidate = np.repeat(np.arange(len(query)), cells)  # of each cell
    question = np.repeat(begin, cells) + _counted(cells)
    values, status = _cells(table, value_name), _cells(table, status_name)
    nothing = pa.nulls(len(values), pa.float32())
    rated = scale is Scale.rating
    columns = [
        _column(table, "query_id").take(query[candidate]),
        candidates.flatten().field("doc_id").take(candidate),
        pa.array(_counted(_lengths(candidates))[candidate] + 1, pa.int32()),
        sub_questions.flatten().field("id").take(question),
        sub_questions.flatten().field("text").take(question),
        values if rated else nothing,
        nothing if rated else values,
        pc.if_else(pc.equal(status, ""), str(CellStatus.error), status),
        _cells(table, "rating_raw") if rated else pa.repeat("", len(values)),
    ]
    return pa.table(columns, schema=schema.COVERAGE_SCHEMA)


def _column(table: pa.Table, name: str) -> pa.Array:
    column = table[name].combine_chunks()
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _cells(table: pa.Table, name: str) -> pa.Array:
    """A matrix per query, row by row, as one column."""
    return _column(table, name).flatten().flatten()


def _members(lists: pa.ListArray, name: str) -> pa.ListArray:
    """Lists of one field of what they list."""
    return pa.ListArray.from_arrays(lists.offsets, lists.values.field(name))


def _lengths(lists: pa.ListArray) -> Numbers:
    lengths: Numbers = pc.list_value_length(lists).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def _counted(lengths: Numbers) -> Numbers:
    """0, 1, … for each of several lists, one after another."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
