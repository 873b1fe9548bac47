"""The names of ids and texts in other people's files, in order of precedence. They end in this folder."""

from __future__ import annotations

from typing import Final

from lancer.formats.records import Place, Record, as_id, as_text, first_present

QUERY_IDS: Final = ("qid", "query_id", "id", "request_id", "topic_id", "narrative_id", "_id")
QUERY_TEXTS: Final = ("query", "text", "request", "question", "problem_statement", "narrative", "title")
DOC_IDS: Final = ("docid", "doc_id", "docno", "_id", "id", "pid")
BODIES: Final = ("text", "contents", "segment", "body", "fullText", "abstract")


def query_id_of(record: Record, place: Place) -> str:
    """The query id of an object; InputError without one."""
    return _id_of(record, QUERY_IDS, "query id", place)


def doc_id_of(record: Record, place: Place) -> str:
    """The document id of an object; InputError without one."""
    return _id_of(record, DOC_IDS, "document id", place)


def body_of(record: Record, place: Place) -> str | None:
    """The document text in an object, without its title; None where there is none or only blanks."""
    name = first_present(record, BODIES)
    return None if name is None else as_text(record[name], _field(place, name))


def _id_of(record: Record, names: tuple[str, ...], what: str, place: Place) -> str:
    name = first_present(record, names)
    if name is None:
        raise place.error(f"no {what}; one of {', '.join(names)} is expected")
    return as_id(record[name], _field(place, name))


def _field(place: Place, name: str) -> Place:
    return place.at(name if place.field is None else f"{place.field}.{name}")
