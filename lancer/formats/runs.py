"""TREC runs: a first stage or second order that is given, and every ranking that is written.

The one order of a run that is read: score descending, then input rank, then line order.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from lancer.errors import InputError, OutputError
from lancer.formats.lines import read_lines
from lancer.formats.records import NUL, Place
from lancer.storage import Storage

COLUMNS: Final = "query_id Q0 doc_id rank score tag"
FLOAT32_EXACT: Final = 2**24  # whole numbers up to here survive float32


@dataclass(frozen=True)
class Run:
    """Per query its (doc_id, score), best first, each document once. `notes` says what was normalised, with counts."""

    rankings: dict[str, list[tuple[str, float]]]
    tag: str
    notes: list[str] = field(default_factory=list)


class _Line(NamedTuple):
    """Sorts into the order of a run."""

    minus_score: float
    rank: int
    number: int
    doc_id: str


def read_run(path: str | Path, storage: Storage | None = None) -> Run:
    """A run, `query_id Q0 doc_id rank score tag` between any blanks; its queries in order of appearance.

    Lines that start with `#` and are no run line are comments. A repeated document keeps its best score. Ranks may
    start anywhere and contradict the scores: the scores decide. All of this is counted in the notes.
    InputError: other than six columns, a rank that is no whole number of at least 0, a score that is no finite number,
    no line at all.
    """
    queries: dict[str, list[_Line]] = {}
    tags: dict[str, None] = {}
    counts: Counter[str] = Counter()
    interleaved: set[str] = set()
    current = ""
    for number, text in read_lines(path, storage):
        columns = text.split()
        if text.startswith("#") and not _is_run_line(columns):
            counts["comment lines skipped"] += 1
            continue
        query_id, line = _parse(columns, path, number)
        if query_id != current and query_id in queries:
            interleaved.add(query_id)
        current = query_id
        queries.setdefault(query_id, []).append(line)
        tags[columns[5]] = None
    if not queries:
        raise InputError("holds no run line", file=path)
    counts["queries whose lines are not together"] = len(interleaved)
    rankings = {query_id: _ordered(lines, counts) for query_id, lines in queries.items()}
    notes = [f"{what}: {count}" for what, count in counts.items() if count]
    if len(tags) > 1:
        notes.append(f"{len(tags)} tags, the first is used: {', '.join(tags)}")
    return Run(rankings, next(iter(tags)), notes)


def scores_for(n: int) -> list[float]:
    """The scores of n ranked documents: n, n - 1, ..., 1. Strictly decreasing and exact in float32 up to n = 2^24."""
    if n > FLOAT32_EXACT:
        raise ValueError(f"a ranking of {n} documents is longer than float32 can tell apart ({FLOAT32_EXACT})")
    return [float(n - position) for position in range(n)]


def run_lines(query_id: str, doc_ids: Sequence[str], tag: str) -> Iterator[str]:
    """The lines of one query, best first, with line ends: rank from 1, scores by `scores_for`.

    OutputError: an id or tag that is empty or has blanks, a document that is ranked twice.
    """
    for what, value in (
        ("query id", query_id),
        ("tag", tag),
        *(("document id", doc_id) for doc_id in doc_ids),
    ):
        if value.split() != [value]:
            raise OutputError(f"a run cannot hold the {what} {value!r}: it is empty or has blanks")
    if len(set(doc_ids)) != len(doc_ids):
        doc_id, times = Counter(doc_ids).most_common(1)[0]
        raise OutputError(f"query {query_id!r} ranks document {doc_id!r} {times} times")
    for position, (doc_id, score) in enumerate(zip(doc_ids, scores_for(len(doc_ids)), strict=True)):
        yield f"{query_id} Q0 {doc_id} {position + 1} {score} {tag}\n"


def write_run(
    target: str | Path | BinaryIO,
    rankings: Iterable[tuple[str, Sequence[str]]],
    tag: str,
    storage: Storage | None = None,
) -> None:
    """Writes (query_id, doc_ids best first) one query at a time, to a path, URI or open binary file.

    A path is committed in one step at the end. OutputError: see `run_lines`; also a query that comes twice.
    """
    with run_writer(target, tag, storage) as write:
        for query_id, doc_ids in rankings:
            write(query_id, doc_ids)


@contextlib.contextmanager
def run_writer(
    target: str | Path | BinaryIO, tag: str, storage: Storage | None = None
) -> Iterator[Callable[[str, Sequence[str]], None]]:
    """`write_run` for rankings that come one by one, of several runs in turn: a call takes one query's."""
    with contextlib.ExitStack() as stack:
        file: BinaryIO
        if isinstance(target, str | Path):
            file = stack.enter_context((storage or Storage()).open_write(str(target)))
        else:
            file = target
        written: set[str] = set()

        def write(query_id: str, doc_ids: Sequence[str]) -> None:
            if query_id in written:
                raise OutputError(f"query {query_id!r} has two rankings")
            written.add(query_id)
            file.write("".join(run_lines(query_id, doc_ids, tag)).encode())

        yield write


def _is_run_line(columns: list[str]) -> bool:
    return len(columns) == 6 and _rank(columns[3]) is not None and _score(columns[4]) is not None


def _parse(columns: list[str], path: str | Path, number: int) -> tuple[str, _Line]:
    if len(columns) == 6:
        query_id, _, doc_id, rank_text, score_text, _ = columns
        rank, score = _rank(rank_text), _score(score_text)
        if rank is not None and score is not None and NUL not in query_id and NUL not in doc_id:
            return query_id, _Line(-score, rank, number, doc_id)
    raise _wrong(columns, Place(path, number))


def _wrong(columns: list[str], place: Place) -> InputError:
    if len(columns) != 6:
        return place.error(f"{len(columns)} columns, 6 expected: {COLUMNS}")
    if _rank(columns[3]) is None:
        return place.at("rank").expected(columns[3], "a whole number of at least 0")
    if _score(columns[4]) is None:
        return place.at("score").expected(columns[4], "a finite number")
    return place.error("an id contains a NUL character")


def _rank(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _score(text: str) -> float | None:
    try:
        score = float(text)
    except ValueError:
        return None
    return score if math.isfinite(score) and text.isascii() and "_" not in text else None


def _ordered(lines: list[_Line], counts: Counter[str]) -> list[tuple[str, float]]:
    best: dict[str, _Line] = {}
    for line in sorted(lines):
        best.setdefault(line.doc_id, line)
    kept = list(best.values())
    ranks = [line.rank for line in kept]
    counts["repeated documents, best score kept"] += len(lines) - len(kept)
    counts["queries with ranks from 0"] += 0 in ranks
    counts["queries whose ranks contradict the scores or repeat"] += any(
        later <= earlier for earlier, later in itertools.pairwise(ranks)
    )
    return [(line.doc_id, -line.minus_score) for line in kept]
