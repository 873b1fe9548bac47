"""Relevance judgments, plain and with sub-topics: what rankings are measured against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from lancer.errors import InputError, OutputError
from lancer.formats.beir import beir_qrels
from lancer.formats.ir_datasets_ids import dataset_id, dataset_judgments
from lancer.formats.lines import read_lines
from lancer.formats.records import NUL, Place
from lancer.storage import Storage

BEIR_HEADER: Final = ["query-id", "corpus-id", "score"]
BEIR: Final = ", ".join(BEIR_HEADER)
TREC: Final = "query_id, 0 or the sub-topic, doc_id, grade (BEIR's three columns need their first line)"
HIGHEST_GRADE: Final = 1_000_000  # trec_eval makes a table of all grades; from 10^9 on it scores 0 without a word


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
    repeats. Also a BEIR folder with one split of qrels, and `ir_datasets:ID`.
    InputError: another number of columns, a grade that is no whole number, two grades for one judgment, nothing judged.
    """
    name = dataset_id(path)
    rows = _of_file(beir_qrels(path, storage), storage) if name is None else _of_dataset(name, Place(path))
    seen: dict[tuple[str, str, str], tuple[int, int | None]] = {}
    for place, qrel in rows:
        earlier, at = seen.setdefault(qrel[:3], (qrel.grade, place.line))
        if earlier != qrel.grade:
            where = "earlier" if at is None else f"on line {at}"
            raise place.error(f"document {qrel.doc_id!r} has grade {qrel.grade} here and {earlier} {where}")
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


def _of_file(path: str | Path, storage: Storage | None) -> Iterator[tuple[Place, Qrel]]:
    first, beir = True, False
    for line, text in read_lines(path, storage):
        place, columns = Place(path, line), text.split()
        if first and columns == BEIR_HEADER:
            beir = True
            continue
        if beir and len(columns) == 3:
            columns.insert(1, "0")
        if text.startswith("#") and (len(columns) != 4 or _grade(columns[3]) is None):
            continue
        first = False
        if len(columns) != 4:
            raise place.error(f"{len(columns)} columns, {'3' if beir else '4'} expected: {BEIR if beir else TREC}")
        grade = _grade(columns[3])
        if grade is None:
            raise place.at("grade").expected(columns[3], f"a whole number of at most {HIGHEST_GRADE}")
        if NUL in text:
            raise place.error("an id contains a NUL character")
        yield place, Qrel(columns[0], columns[1], columns[2], grade)


def _of_dataset(name: str, place: Place) -> Iterator[tuple[Place, Qrel]]:
    for row in dataset_judgments(name):
        yield place, Qrel(*row)


def _grade(text: str) -> int | None:
    try:
        grade = float(text)
    except ValueError:
        return None
    whole = grade.is_integer() and abs(grade) <= HIGHEST_GRADE
    return int(grade) if whole and text.isascii() and "_" not in text else None
