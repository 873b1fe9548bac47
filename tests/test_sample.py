"""The bundled sample keeps what it promises."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import pytest

from lancer.evaluation.measures import evaluate, parse_measures
from lancer.formats.corpora import read_corpus
from lancer.formats.qrels import read_qrels
from lancer.formats.requests import read_requests
from lancer.formats.sub_questions import read_sub_questions

SAMPLE = Path(__file__).resolve().parents[1] / "configs" / "sample"


@pytest.fixture(scope="module")
def passages() -> dict[str, str]:
    return {p.document.doc_id: p.document.text for p in read_corpus(SAMPLE / "corpus.jsonl")}


def test_size_and_lengths(passages: dict[str, str]) -> None:
    requests = read_requests(SAMPLE / "requests.jsonl")
    assert len(requests) >= 12
    assert len(passages) >= 240
    assert all(60 <= len(text.split()) <= 200 for text in passages.values())
    sub_questions = read_sub_questions(SAMPLE / "sub_questions.jsonl")
    assert sub_questions.keys() == {r.query_id for r in requests}
    assert all(5 <= len(questions) <= 8 for questions in sub_questions.values())


def test_every_sub_question_has_an_answer_and_every_judgment_its_passage(passages: dict[str, str]) -> None:
    qrels = read_qrels(SAMPLE / "qrels.txt")
    assert {q.doc_id for q in qrels} <= passages.keys()
    answered = {(q.query_id, q.sub_topic) for q in qrels if q.grade > 0}
    asked = {
        (query_id, s.id)
        for query_id, questions in read_sub_questions(SAMPLE / "sub_questions.jsonl").items()
        for s in questions
    }
    assert asked == answered


def test_only_marked_passages_repeat_another(passages: dict[str, str]) -> None:
    rows = [json.loads(line) for line in (SAMPLE / "corpus.jsonl").read_text().splitlines()]
    marked = {frozenset((r["doc_id"], r["redundant_with"])) for r in rows if "redundant_with" in r}
    grams = {doc_id: _five_grams(text) for doc_id, text in passages.items()}
    alike = {
        frozenset((a, b))
        for a, b in combinations(grams, 2)
        if len(grams[a] & grams[b]) > 0.3 * len(grams[a] | grams[b])
    }
    assert marked, "redundant passages are part of the sample"
    assert alike <= marked


def _five_grams(text: str) -> frozenset[tuple[str, ...]]:
    words = text.casefold().split()
    return frozenset(zip(*(words[i:] for i in range(5)), strict=False))


def test_greedy_over_the_judgments_covers_nearly_everything() -> None:
    qrels = read_qrels(SAMPLE / "qrels.txt")
    answers: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for q in qrels:
        if q.grade > 0:
            answers[q.query_id][q.doc_id].add(q.sub_topic)
    rankings = {}
    for query_id, documents in answers.items():
        times: dict[str, int] = defaultdict(int)
        order: list[str] = []
        while len(order) < len(documents):
            rest = [d for d in sorted(documents) if d not in order]
            best = max(rest, key=lambda d: sum(0.5 ** times[s] for s in documents[d]))
            order.append(best)
            for s in documents[best]:
                times[s] += 1
        rankings[query_id] = [(d, float(-i)) for i, d in enumerate(order)]
    assert evaluate(rankings, qrels, parse_measures("alpha_nDCG@10")).mean["alpha_nDCG@10"] >= 0.9
