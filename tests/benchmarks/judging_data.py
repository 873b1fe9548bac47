"""Pairs of `dl19-subquestions` for the benchmarks of judging, with the grade of each."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks import dl19


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
    texts, requests, grades = dl19.read_texts(folder), dl19.read_requests(folder), dl19.read_grades(folder)
    sub_questions, candidates = dl19.read_sub_questions(folder), dl19.read_candidates(folder)
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
