"""The stages of a finished run, as its folder tells them: names and settings by `run.json`, documents by its tables."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lancer import schema
from lancer.errors import InputError
from lancer.evaluation.stages import Step
from lancer.storage import Storage, join

RECORD: Final = "run.json"
RANKINGS: Final = "ranking.parquet"
COMPRESSED: Final = "compressed.parquet"

Orders = dict[str, list[str]]


def of_run(folder: str, storage: Storage) -> list[Step]:
    """The stages of a run that pass documents on, in order.

    retrieve: the candidates. rerank.<name>: what it kept. select: the first selector's ranking of what was kept, and of
    it only what the compression is given, where there is one. compress: the documents of which some text stays.
    InputError: no finished run, or a table of another version.
    """
    record = _record(folder, storage)
    settings = {stage["name"]: stage["identity"]["settings"] for stage in record["stages"]}
    rankings = _read(folder, RANKINGS, schema.RANKING_SCHEMA, storage)
    steps = []
    for name in settings:
        kind = name.split(".")[0]
        if kind == "retrieve":
            steps.append(Step(name=name, orders=_first_stage(rankings)))
        elif kind == "rerank":
            steps.append(Step(name=name, orders=_ranked(rankings, name)))
        elif kind == "select":
            depth = settings["compress"]["depth"] if "compress" in settings else None
            steps.append(Step.cut(name, _ranked(rankings, settings["select"]["selectors"][0]), depth))
        elif kind == "compress":
            steps.append(_compressed(name, _read(folder, COMPRESSED, schema.COMPRESSED_SCHEMA, storage)))
    return steps


def _record(folder: str, storage: Storage) -> dict[str, Any]:
    uri = join(folder, RECORD)
    if not storage.exists(uri):
        raise InputError(f"is neither a run file nor a run folder: it has no {RECORD}", file=folder)
    try:
        record = json.loads(storage.read(uri))
    except ValueError as error:
        raise InputError(f"is not JSON: {error}", file=uri) from None
    if not isinstance(record, dict) or record.get("status") != "finished":
        raise InputError("the run is not finished; `lancer run` goes on with it", file=folder)
    return record


def _read(folder: str, name: str, expected: pa.Schema, storage: Storage) -> pa.Table:
    """All parts of a table, which the end of a run leaves without stale ones."""
    tables = [expected.empty_table()]
    for entry in storage.list(join(folder, name)):
        try:
            table = pq.read_table(io.BytesIO(storage.read(entry.uri)))
        except pa.ArrowException as error:
            raise InputError(f"is no Parquet file, or a damaged one: {error}", file=entry.uri) from None
        if not table.schema.equals(expected):
            raise InputError("has another schema than this version of lancer writes", file=entry.uri)
        tables.append(table.replace_schema_metadata())
    return pa.concat_tables(tables)


def _first_stage(rankings: pa.Table) -> Orders:
    """Every selector has every candidate: the first one tells them all."""
    any_selector = rankings["selector"][0] if rankings.num_rows else None
    return _orders(rankings.filter(pc.equal(rankings["selector"], any_selector)), "first_stage_rank")


def _ranked(rankings: pa.Table, selector: str) -> Orders:
    rows = rankings.filter(pc.and_(pc.equal(rankings["selector"], selector), rankings["kept"]))
    return _orders(rows, "rank")


def _orders(rows: pa.Table, rank: str) -> Orders:
    ordered = rows.select(["query_id", rank, "doc_id"]).sort_by([("query_id", "ascending"), (rank, "ascending")])
    orders: Orders = {}
    for query_id, doc_id in _pairs(ordered):
        orders.setdefault(query_id, []).append(doc_id)
    return orders


def _pairs(table: pa.Table) -> Iterator[tuple[str, str]]:
    return zip(table["query_id"].to_pylist(), table["doc_id"].to_pylist(), strict=True)


def _compressed(name: str, table: pa.Table) -> Step:
    stay = pc.greater(pc.list_value_length(table["spans"]), 0)
    kept, whole = _total(pc.utf8_length(table["text"])), _total(table["characters"])
    orders = {query_id: list[str]() for query_id in table["query_id"].to_pylist()}
    share = f"{kept / whole:.1%} of the characters of {table.num_rows} documents stay" if whole else "no text"
    return Step(name=name, orders=orders | _orders(table.filter(stay), "rank"), notes=(share,))


def _total(counts: Iterable[Any]) -> int:
    return int(pc.sum(counts).as_py() or 0)
