"""Rating matrices in other people's files, matched by id wherever the file has ids.

A rating is 0 to 5: how well one document answers one sub-question. -1 (LANCER's mark for an answer that could not be
read) and null are read as None.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lancer.errors import InputError
from lancer.formats.aliases import doc_id_of, query_id_of
from lancer.formats.records import Place, Record, as_id, as_list, as_number, read_records
from lancer.formats.runs import Run
from lancer.schema import RATING_SCALE
from lancer.storage import Storage

Row = dict[str, int | None]  # sub-question id -> rating


@dataclass(frozen=True)
class RatingMatrix:
    """The ratings of one query: `ratings[i][j]` is document i's for sub-question j; None = not known."""

    doc_ids: list[str]
    sub_question_ids: list[str]
    ratings: list[list[int | None]]


def read_ratings(path: str | Path, run: Run | None = None, storage: Storage | None = None) -> dict[str, RatingMatrix]:
    """The rating matrix of each query.

    Shapes:
    - keyed JSON Lines `{"query_id", "doc_id", "sub_question_id", "rating"}`, as `write_ratings` writes them; documents
      and sub-questions in order of appearance, cells that are not in the file are None,
    - crux JSON Lines `{"id", "docid", "rating": [...]}`, one line per document,
    - LANCER's positional JSON `{query_id: [[...], ...]}`: row i is document i of the run it was made from, which
      must be given as `run`.
    Sub-questions without ids are "1", "2", ... by position.
    InputError: a rating outside the scale, rows of different length, a cell or document given twice, a positional
    file without a run or with other queries or rows than the run, nothing in the file.
    """
    records = read_records(path, storage)
    first = next(records, None)
    if first is None:
        raise InputError("holds no rating", file=path)
    located = itertools.chain([first], records)
    if "rating" not in first[1]:
        return _positional(located, run, Place(path))
    queries: dict[str, dict[str, Row]] = {}
    widths: dict[str, int] = {}
    for place, record in located:
        query_id, doc_id, row = _row(record, place)
        documents = queries.setdefault(query_id, {})
        crux = isinstance(record["rating"], list)
        known = documents.get(doc_id)
        if known is not None and (crux or known.keys() & row.keys()):
            cell = f"document {doc_id!r}" + ("" if crux else f" and sub-question {next(iter(row))!r}")
            raise place.error(f"query {query_id!r} has {cell} twice")
        if crux and len(row) != widths.setdefault(query_id, len(row)):
            reason = f"{len(row)} ratings, the first document of query {query_id!r} has {widths[query_id]}"
            raise place.at("rating").error(reason)
        documents.setdefault(doc_id, {}).update(row)
    return {query_id: _matrix(documents) for query_id, documents in queries.items()}


def is_positional(path: str | Path, storage: Storage | None = None) -> bool:
    """Whether a rating file has no document ids: then another run of the same shape cannot be told from its own.

    False for folders and Parquet files.
    """
    if str(path).endswith(".parquet") or not (storage or Storage()).exists(str(path)):
        return False
    _, first = next(read_records(path, storage), (None, {"rating": None}))
    return "rating" not in first


def write_ratings(path: str | Path, matrices: Mapping[str, RatingMatrix], storage: Storage | None = None) -> None:
    """Writes keyed JSON Lines, one per cell; a cell without a value has `"rating": null`."""
    with (storage or Storage()).open_write(str(path)) as file:
        for query_id, matrix in matrices.items():
            for doc_id, row in zip(matrix.doc_ids, matrix.ratings, strict=True):
                for sub_question_id, rating in zip(matrix.sub_question_ids, row, strict=True):
                    ids = {"query_id": query_id, "doc_id": doc_id, "sub_question_id": sub_question_id}
                    file.write(json.dumps({**ids, "rating": rating}, ensure_ascii=False).encode() + b"\n")


def _row(record: Record, place: Place) -> tuple[str, str, Row]:
    query_id = query_id_of(record, place)
    doc_id = doc_id_of({name: value for name, value in record.items() if name != "id"}, place)
    if "rating" not in record:
        raise place.error("no rating")
    value = record["rating"]
    if isinstance(value, list):
        return query_id, doc_id, dict(zip(_positions(len(value)), _ratings(value, place.at("rating")), strict=True))
    sub_question_id = as_id(record.get("sub_question_id"), place.at("sub_question_id"))
    return query_id, doc_id, {sub_question_id: _rating(value, place.at("rating"))}


def _matrix(documents: dict[str, Row]) -> RatingMatrix:
    sub_question_ids = list(dict.fromkeys(itertools.chain.from_iterable(documents.values())))
    ratings = [[row.get(name) for name in sub_question_ids] for row in documents.values()]
    return RatingMatrix(list(documents), sub_question_ids, ratings)


def _positional(located: Iterable[tuple[Place, Record]], run: Run | None, file: Place) -> dict[str, RatingMatrix]:
    if run is None:
        raise file.error("holds positional ratings; the run they were made from must be given with them")
    found: dict[str, RatingMatrix] = {}
    for place, record in located:
        for query_id, value in record.items():
            here = place.at(query_id)
            doc_ids = [doc_id for doc_id, _ in run.rankings.get(query_id, [])]
            rows = as_list(value, here)
            if len(rows) != len(doc_ids):
                raise here.error(f"{len(rows)} rows, the run has {len(doc_ids)} documents for this query")
            found[query_id] = _positional_matrix(doc_ids, rows, here)
    missing = [query_id for query_id in run.rankings if query_id not in found]
    if missing:
        raise file.error(f"has no ratings for {len(missing)} queries of the run, such as {missing[0]!r}")
    return found


def _positional_matrix(doc_ids: list[str], rows: list[object], place: Place) -> RatingMatrix:
    ratings = []
    for position, row in enumerate(rows):
        here = place.at(f"{place.field}[{position}]")
        ratings.append(_ratings(as_list(row, here), here))
        if len(ratings[-1]) != len(ratings[0]):
            raise here.error(f"{len(ratings[-1])} ratings, the first row has {len(ratings[0])}")
    return RatingMatrix(doc_ids, _positions(len(ratings[0]) if ratings else 0), ratings)


def _positions(length: int) -> list[str]:
    return [str(position + 1) for position in range(length)]


def _ratings(values: list[object], place: Place) -> list[int | None]:
    low, high = RATING_SCALE
    return [
        value
        if type(value) is int and low <= value <= high  # nearly all of them, and nothing else to do
        else _rating(value, place.at(f"{place.field}[{position}]"))
        for position, value in enumerate(values)
    ]


def _rating(value: object, place: Place) -> int | None:
    if value is None:
        return None
    low, high = RATING_SCALE
    rating = as_number(value, place)
    if rating == -1:
        return None
    if not rating.is_integer() or not low <= rating <= high:
        raise place.expected(value, f"a whole number from {low} to {high} (or -1 or null: not known)")
    return int(rating)
