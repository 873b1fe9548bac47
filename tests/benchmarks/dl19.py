"""The files of `dl19-subquestions`: 22 queries, their candidates, sub-questions, and flan-t5's grade of every pair."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from lancer.formats.runs import read_run


def read_texts(folder: Path) -> dict[str, str]:
    """Document id → text."""
    with gzip.open(folder / "docs.jsonl.gz", "rt", encoding="utf-8") as lines:
        return {row["docid"]: row["text"] for row in map(json.loads, lines)}


def read_requests(folder: Path) -> dict[str, str]:
    """Query id → its text."""
    return dict(line.split("\t") for line in _lines(folder / "queries.tsv"))


def read_sub_questions(folder: Path) -> dict[str, dict[str, str]]:
    """Query id → number ("1", "2", …) → sub-question."""
    found: dict[str, dict[str, str]] = {}
    for query_id, number, text in (line.split("\t") for line in _lines(folder / "subquestions.tsv")):
        found.setdefault(query_id, {})[number] = text
    return found


def read_grades(folder: Path) -> dict[tuple[str, str, str], int]:
    """(query id, number of the sub-question, document id) → 0 to 5."""
    with gzip.open(folder / "grades.subquestions.txt.gz", "rt", encoding="utf-8") as lines:
        return {(query_id, number, doc_id): int(grade) for query_id, number, doc_id, grade in map(str.split, lines)}


def read_candidates(folder: Path) -> dict[str, list[str]]:
    """Query id → 100 document ids in BM25's order."""
    run = read_run(folder / "candidates.bm25-judged-pool.run")
    return {query_id: [doc_id for doc_id, _ in ranking] for query_id, ranking in run.rankings.items()}


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines()
