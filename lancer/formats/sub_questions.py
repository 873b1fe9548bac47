"""Given sub-questions of each query ("nuggets as questions"): oracle files, and what a decompose stage found.

The columns of a positional ratings file are the sub-questions of such a file, in its order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lancer.errors import InputError
from lancer.formats.aliases import query_id_of
from lancer.formats.lines import is_json, read_lines
from lancer.formats.records import Place, as_id, as_list, as_text, read_records
from lancer.storage import Storage


@dataclass(frozen=True)
class SubQuestion:
    """One point that a report should answer; `id` is unique within its query."""

    id: str
    text: str


def read_sub_questions(path: str | Path, storage: Storage | None = None) -> dict[str, list[SubQuestion]]:
    """The sub-questions of each query, in the order of the file.

    Shapes:
    - JSON `{query_id: [item, ...], ...}`,
    - JSON Lines or an array of `{"query_id": ..., "sub_questions": [item, ...]}` with the id under one of `QUERY_IDS`,
    - tab-separated `query_id<TAB>sub-question id<TAB>text`.
    An item is a text or `{"id", "text"}`; ids that are not given are "1", "2", ... by position. A blank string among
    texts is left out and the ids after it keep their position: the published DUC'04 oracle file has one, and the
    columns of its ratings must still match. InputError: nothing in the file, an object or line without text, a query
    or a sub-question id given twice.
    """
    if not is_json(path, storage):
        return _from_tsv(path, storage)
    found: dict[str, list[SubQuestion]] = {}
    lines: dict[str, int | None] = {}
    for place, query_id, sub_questions in _from_json(path, storage):
        if query_id in lines:
            raise place.error(f"query {query_id!r} is already on line {lines[query_id]}")
        found[query_id], lines[query_id] = sub_questions, place.line
    if not any(found.values()):
        raise InputError("holds no sub-question", file=path)
    return found


def write_sub_questions(
    path: str | Path, sub_questions: Mapping[str, Sequence[SubQuestion]], storage: Storage | None = None
) -> None:
    """Writes JSON Lines `{"query_id", "sub_questions": [{"id", "text"}]}`, one line per query."""
    with (storage or Storage()).open_write(str(path)) as file:
        for query_id, items in sub_questions.items():
            record = {"query_id": query_id, "sub_questions": [{"id": item.id, "text": item.text} for item in items]}
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def _from_json(path: str | Path, storage: Storage | None) -> Iterator[tuple[Place, str, list[SubQuestion]]]:
    for place, record in read_records(path, storage):
        if "sub_questions" in record:
            yield place, query_id_of(record, place), _items(record["sub_questions"], place.at("sub_questions"))
        else:
            for query_id, items in record.items():
                here = place.at(query_id)
                yield here, as_id(query_id, place), _items(items, here)


def _items(value: object, place: Place) -> list[SubQuestion]:
    found: dict[str, SubQuestion] = {}
    for position, item in enumerate(as_list(value, place), 1):
        if isinstance(item, str) and not item.strip():
            continue
        here = place.at(f"{place.field}[{position - 1}]")
        parts = item if isinstance(item, dict) else {"text": item}
        sub_question_id = str(position) if parts.get("id") is None else as_id(parts["id"], here)
        text = as_text(parts.get("text"), here)
        if text is None:
            raise here.expected(item, "a sub-question")
        if sub_question_id in found:
            raise here.error(f"the sub-question id {sub_question_id!r} appears twice")
        found[sub_question_id] = SubQuestion(sub_question_id, text)
    return list(found.values())


def _from_tsv(path: str | Path, storage: Storage | None) -> dict[str, list[SubQuestion]]:
    found: dict[str, list[SubQuestion]] = {}
    lines: dict[tuple[str, str], int] = {}
    for line, row in read_lines(path, storage):
        place = Place(path, line)
        columns = [column.strip() for column in row.split("\t")]
        if len(columns) != 3:
            expected = "3 expected: query_id<TAB>sub-question id<TAB>text"
            raise place.error(f"{len(columns)} tab-separated columns, {expected}")
        query_id = as_id(columns[0], place.at("query_id"))
        sub_question_id = as_id(columns[1], place.at("id"))
        if not columns[2]:
            raise place.at("text").error(f"the text of sub-question {sub_question_id!r} is empty")
        if (query_id, sub_question_id) in lines:
            earlier = lines[query_id, sub_question_id]
            raise place.error(f"sub-question {sub_question_id!r} of query {query_id!r} is already on line {earlier}")
        lines[query_id, sub_question_id] = line
        found.setdefault(query_id, []).append(SubQuestion(sub_question_id, columns[2]))
    if not found:
        raise InputError("holds no sub-question", file=path)
    return found
