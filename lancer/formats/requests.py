"""Report requests and the candidate lists they may carry: the first input of every run.

Field names of TREC, BEIR, CRUX, RAGTIME and Castorini files end here; the rest of the program knows only `Request`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lancer.errors import InputError
from lancer.formats.aliases import QUERY_IDS, QUERY_TEXTS, body_of, doc_id_of, query_id_of
from lancer.formats.beir import beir_queries
from lancer.formats.ir_datasets_ids import dataset_id, dataset_queries
from lancer.formats.lines import is_json, read_lines
from lancer.formats.records import (
    Place,
    Record,
    as_id,
    as_list,
    as_number,
    as_object,
    as_text,
    first_present,
    read_records,
)
from lancer.storage import Storage


@dataclass(frozen=True)
class GivenCandidate:
    """A document that a request brings along; `title` and `text` only where the file holds them."""

    doc_id: str
    score: float | None = None
    title: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class Request:
    """One report request. `candidates`: None = retrieve; a tuple = nothing outside it may enter the ranking.

    `limit` is the length asked of the report, in the unit of its campaign.
    """

    query_id: str
    text: str
    title: str | None = None
    background: str | None = None
    problem_statement: str | None = None
    limit: int | None = None
    candidates: tuple[GivenCandidate, ...] | None = None


def read_requests(path: str | Path, storage: Storage | None = None) -> list[Request]:
    """The requests of a file, in its order.

    Shapes: tab-separated `query_id<TAB>text` (a first line that names the two columns is skipped), or JSON Lines or a
    JSON array of objects with
    - an id under the first present of `QUERY_IDS`; whole numbers are read as strings,
    - a text under the first present of `QUERY_TEXTS`; `title` and `problem_statement` are kept beside it unless they
      are it,
    - optionally `background`, `limit`, and `doc_ids` (ids) or `candidates` (ids, or objects with an id under one of
      `DOC_IDS`, `score`, and a title and body in the object or in its `doc`); or
    - Castorini's `{"query": {"qid", "text"}, "candidates": [...]}`.
    Also a BEIR folder, for its queries, and `ir_datasets:ID`.

    InputError: no request, no or empty id or text, an id with blanks, a query id or a candidate given twice.
    """
    found: dict[str, tuple[Request, int | None]] = {}
    for place, request in _located(path, storage):
        if request.query_id in found:
            raise place.error(f"query id {request.query_id!r} is already on line {found[request.query_id][1]}")
        found[request.query_id] = request, place.line
    if not found:
        raise InputError("holds no request", file=path)
    return [request for request, _ in found.values()]


def _located(path: str | Path, storage: Storage | None) -> Iterator[tuple[Place, Request]]:
    name = dataset_id(path)
    if name is not None:
        return ((Place(path), _from_dataset(*row, Place(path))) for row in dataset_queries(name))
    file = beir_queries(path, storage)
    if is_json(file, storage):
        return ((place, _from_record(record, place)) for place, record in read_records(file, storage))
    return _from_tsv(file, storage)


def _from_dataset(query_id: str, text: str, place: Place) -> Request:
    if not text.strip():
        raise place.error(f"the text of query {query_id!r} is empty")
    return Request(as_id(query_id, place), text.strip())


def _from_tsv(path: str | Path, storage: Storage | None) -> Iterator[tuple[Place, Request]]:
    first = True
    for line, row in read_lines(path, storage):
        place = Place(path, line)
        columns = [column.strip() for column in row.split("\t")]
        if len(columns) != 2:
            raise place.error(f"{len(columns)} tab-separated columns, 2 expected: query_id<TAB>text")
        is_header = first and columns[0] in QUERY_IDS and columns[1] in QUERY_TEXTS
        first = False
        if is_header:
            continue
        query_id = as_id(columns[0], place.at("query_id"))
        if not columns[1]:
            raise place.at("text").error(f"the text of query {query_id!r} is empty")
        yield place, Request(query_id, columns[1])


def _from_record(record: Record, place: Place) -> Request:
    fields = record
    if isinstance(record.get("query"), dict):
        fields = {**record, "query": None, **as_object(record["query"], place)}
    query_id = query_id_of(fields, place)
    name = first_present(fields, QUERY_TEXTS)
    text = None if name is None else as_text(fields[name], place.at(name))
    if text is None:
        empty = "the text is empty" if any(name in fields for name in QUERY_TEXTS) else "no text"
        raise place.error(f"query {query_id!r}: {empty}; one of {', '.join(QUERY_TEXTS)} is expected")
    beside = {
        other: None if other == name else as_text(fields.get(other), place.at(other))
        for other in ("title", "background", "problem_statement")
    }
    return Request(
        query_id,
        text,
        limit=_limit(fields.get("limit"), place.at("limit")),
        candidates=_candidates(record, place),
        **beside,
    )


def _limit(value: object, place: Place) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise place.expected(value, "a whole number of at least 1")
    return value


def _candidates(record: Record, place: Place) -> tuple[GivenCandidate, ...] | None:
    given = [name for name in ("doc_ids", "candidates") if record.get(name) is not None]
    if not given:
        return None
    if len(given) > 1:
        raise place.error("doc_ids and candidates are both given, one of them is expected")
    found: dict[str, GivenCandidate] = {}
    for position, item in enumerate(as_list(record[given[0]], place.at(given[0]))):
        here = place.at(f"{given[0]}[{position}]")
        candidate = _candidate(item, here) if isinstance(item, dict) else GivenCandidate(as_id(item, here))
        if candidate.doc_id in found:
            raise here.error(f"document {candidate.doc_id!r} is listed twice")
        found[candidate.doc_id] = candidate
    return tuple(found.values())


def _candidate(item: Record, place: Place) -> GivenCandidate:
    score, doc = item.get("score"), item.get("doc", item)
    within: Record = {"text": doc} if isinstance(doc, str) else as_object(doc, place.at(f"{place.field}.doc"))
    return GivenCandidate(
        doc_id_of(item, place),
        None if score is None else as_number(score, place.at(f"{place.field}.score")),
        as_text(within.get("title"), place.at(f"{place.field}.title")),
        body_of(within, place),
    )
