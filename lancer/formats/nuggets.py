"""Nuggets of an answer's topic, and which of them the answer supports (TREC RAG, AutoNuggetizer)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from lancer.errors import InputError
from lancer.formats.aliases import query_id_of
from lancer.formats.records import Place, Record, as_list, as_object, as_text, read_records
from lancer.storage import Storage


class Importance(StrEnum):
    """Whether a report must contain the nugget."""

    vital = "vital"
    okay = "okay"


class Assignment(StrEnum):
    """How far the answer supports the nugget."""

    support = "support"
    partial_support = "partial_support"
    not_support = "not_support"


@dataclass(frozen=True)
class Nugget:
    """One fact. `importance` and `assignment` are the file's words; `assignment` is None in a list without an answer.

    Language models write these labels and sometimes another word than `Importance` and `Assignment` have; it is kept,
    and `unknown_words` counts it: what it is worth is for the measure to say.
    """

    text: str
    importance: str
    assignment: str | None = None


@dataclass(frozen=True)
class Topic:
    """The nuggets of one query, in the order of the file."""

    query_id: str
    query: str | None
    nuggets: tuple[Nugget, ...]


def read_nuggets(path: str | Path, storage: Storage | None = None) -> list[Topic]:
    """The topics of a file.

    Shape: JSON Lines or an array of `{"qid", "query", "nuggets": [{"text", "importance", "assignment"}]}`, the id under
    one of `QUERY_IDS`; other fields are ignored.
    InputError: no topic, no id, a query given twice, a nugget without text or importance.
    """
    found: dict[str, Topic] = {}
    for place, record in read_records(path, storage):
        topic = _topic(record, place)
        if topic.query_id in found:
            raise place.error(f"query {topic.query_id!r} appears twice")
        found[topic.query_id] = topic
    if not found:
        raise InputError("holds no topic", file=path)
    return list(found.values())


def unknown_words(topics: Iterable[Topic]) -> Counter[str]:
    """How often each importance or assignment occurs that is none of the known ones."""
    known = {*Importance, *Assignment}
    nuggets = [nugget for topic in topics for nugget in topic.nuggets]
    words = [word for nugget in nuggets for word in (nugget.importance, nugget.assignment) if word is not None]
    return Counter(word for word in words if word not in known)


def write_nuggets(path: str | Path, topics: Iterable[Topic], storage: Storage | None = None) -> None:
    """Writes JSON Lines in the shape that `read_nuggets` reads, one topic per line."""
    with (storage or Storage()).open_write(str(path)) as file:
        for topic in topics:
            nuggets = [
                {"text": nugget.text, "importance": nugget.importance}
                | ({} if nugget.assignment is None else {"assignment": nugget.assignment})
                for nugget in topic.nuggets
            ]
            record = {"query": topic.query, "qid": topic.query_id, "nuggets": nuggets}
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def _topic(record: Record, place: Place) -> Topic:
    items = as_list(record.get("nuggets"), place.at("nuggets"))
    nuggets = tuple(_nugget(item, place, f"nuggets[{position}]") for position, item in enumerate(items))
    return Topic(query_id_of(record, place), as_text(record.get("query"), place.at("query")), nuggets)


def _nugget(item: object, place: Place, field: str) -> Nugget:
    parts = as_object(item, place.at(field))
    text = as_text(parts.get("text"), place.at(f"{field}.text"))
    importance = as_text(parts.get("importance"), place.at(f"{field}.importance"))
    if text is None or importance is None:
        missing = "text" if text is None else "importance"
        raise place.at(f"{field}.{missing}").error("is missing or empty")
    return Nugget(text, importance, as_text(parts.get("assignment"), place.at(f"{field}.assignment")))
