"""Pairs of `dl19-subquestions` for the benchmarks of judging, with the grade of each."""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Judged:
    """A query's first candidates and its sub-questions; `grades` has shape (documents, sub_questions), 0 to 5."""

    query_id: str
    request: str
    documents: tuple[str, ...]
    sub_questions: tuple[str, ...]
    grades: tuple[tuple[int, ...], ...]


def read_judged(folder: Path, queries: int, documents: int) -> list[Judged]:
    """The first `queries`, with the first `documents` BM25 candidates of each."""
    with gzip.open(folder / "docs.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = {d["docid"]: d["text"] for d in map(json.loads, lines)}
    with gzip.open(folder / "grades.subquestions.txt.gz", "rt", encoding="utf-8") as lines:
        grades = {(q, s, d): int(grade) for q, s, d, grade in map(str.split, lines)}
    requests = dict(line.split("\t") for line in _lines(folder / "queries.tsv"))
    sub_questions: dict[str, dict[str, str]] = {}
    for query, number, text in (line.split("\t") for line in _lines(folder / "subquestions.tsv")):
        sub_questions.setdefault(query, {})[number] = text
    candidates: dict[str, list[str]] = {}
    for query, _, document, *_ in map(str.split, _lines(folder / "candidates.bm25-judged-pool.run")):
        candidates.setdefault(query, []).append(document)
    return [
        Judged(
            query,
            requests[query],
            tuple(texts[d] for d in candidates[query][:documents]),
            tuple(sub_questions[query].values()),
            tuple(tuple(grades[query, s, d] for s in sub_questions[query]) for d in candidates[query][:documents]),
        )
        for query in itertools.islice(sub_questions, queries)
    ]


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()
