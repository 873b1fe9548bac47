"""Relevance judgments, plain and with sub-topics: what rankings are measured against."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from lancer.errors import InputError, OutputError
from lancer.formats.lines import read_lines
from lancer.formats.records import Place
from lancer.storage import Storage

BEIR_HEADER: Final = ["query-id", "corpus-id", "score"]
BEIR: Final = ", ".join(BEIR_HEADER)
TREC: Final = "query_id, 0 or the sub-topic, doc_id, grade (BEIR's three columns need their first line)"


class Qrel(NamedTuple):
    """One judgment; `sub_topic` is "0" (or what the file has in its place) in plain qrels. `grade` is at least 0."""

    query_id: str
    sub_topic: str
    doc_id: str
    grade: int


def read_qrels(path: str | Path, storage: Storage | None = None) -> list[Qrel]:
    """The judgments of a file, in its order.

    Shapes: `query_id 0 doc_id grade` between any blanks; diversity qrels, with the sub-topic in the second column;
    BEIR, `query-id<TAB>corpus-id<TAB>score` under that first line. A grade may be written `1.0`. Lines that start
    with `#` and are no judgment are comments. A negative grade means unjudged: such lines are left out, as are exact
    repeats.
    InputError: another number of columns, a grade that is no whole number, two grades for one judgment, nothing judged.
    """
    seen: dict[tuple[str, str, str], tuple[int, int]] = {}
    beir = False
    for line, text in read_lines(path, storage):
        place, columns = Place(path, line), text.split()
        if not seen and columns == BEIR_HEADER:
            beir = True
            continue
        if beir and len(columns) == 3:
            columns.insert(1, "0")
        if text.startswith("#") and (len(columns) != 4 or _grade(columns[3]) is None):
            continue
        if len(columns) != 4:
            raise place.error(f"{len(columns)} columns, {'3' if beir else '4'} expected: {BEIR if beir else TREC}")
        grade = _grade(columns[3])
        if grade is None:
            raise place.at("grade").expected(columns[3], "a whole number")
        key = (columns[0], columns[1], columns[2])
        earlier, at = seen.setdefault(key, (grade, line))
        if earlier != grade:
            raise place.error(f"document {key[2]!r} has grade {grade} here and {earlier} on line {at}")
    qrels = [Qrel(*key, grade) for key, (grade, _) in seen.items() if grade >= 0]
    if not qrels:
        raise InputError("holds no judgment", file=path)
    return qrels


def write_qrels(path: str | Path, qrels: Iterable[Qrel], storage: Storage | None = None) -> None:
    """Writes `query_id sub_topic doc_id grade`, one per line; OutputError for a part that is empty or has blanks."""
    with (storage or Storage()).open_write(str(path)) as file:
        for qrel in qrels:
            line = " ".join(map(str, qrel))
            if len(line.split()) != 4 or line.split(" ") != line.split():
                raise OutputError(f"qrels cannot hold {tuple(qrel)!r}: a part is empty or has blanks")
            file.write(line.encode() + b"\n")


def _grade(text: str) -> int | None:
    try:
        grade = float(text)
    except ValueError:
        return None
    return int(grade) if grade.is_integer() and text.isascii() and "_" not in text else None
