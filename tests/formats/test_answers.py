"""Answers of two campaigns, read to the same thing: sentences that cite document ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lancer.errors import InputError
from lancer.formats.answers import Answer, Sentence, ragtime_record, read_answers, trec_rag_record, write_answers

ANSWER = Answer("7", "mine", ("d1", "d2", "d3"), (Sentence("One.", ("d3", "d1")), Sentence("Two.", ())))


def read(tmp_path: Path, content: str) -> list[Answer]:
    path = tmp_path / "answers.jsonl"
    path.write_text(content)
    return read_answers(path)


@pytest.mark.parametrize("record", [trec_rag_record(ANSWER), ragtime_record(ANSWER)])
def test_round_trip(record: dict[str, object], tmp_path: Path) -> None:
    write_answers(tmp_path / "a.jsonl", [record])
    assert read_answers(tmp_path / "a.jsonl") == [ANSWER]


def test_trec_rag_cites_by_index() -> None:
    assert trec_rag_record(ANSWER) == {
        "metadata": {"run_id": "mine", "narrative_id": "7"},
        "references": ["d1", "d2", "d3"],
        "answer": [{"text": "One.", "citations": [2, 0]}, {"text": "Two.", "citations": []}],
    }


def test_ids_may_stand_beside_the_answer(tmp_path: Path) -> None:
    record = {"topic_id": 7, "run_id": "mine", "references": ["d1"], "answer": [{"text": "One.", "citations": [0, 0]}]}
    assert read(tmp_path, json.dumps(record)) == [Answer("7", "mine", ("d1",), (Sentence("One.", ("d1",)),))]


def test_scored_citations_are_ordered_by_score(tmp_path: Path) -> None:
    record = {"metadata": {"topic_id": "7"}, "responses": [{"text": "One.", "citations": {"d1": 0.2, "d2": 0.9}}]}
    assert read(tmp_path, json.dumps(record)) == [Answer("7", None, ("d2", "d1"), (Sentence("One.", ("d2", "d1")),))]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no answer"),
        ('{"metadata": {"qid": "1"}}', ":1: neither 'answer' (TREC RAG) nor 'responses' (RAGTIME) is there"),
        ('{"metadata": {}, "responses": []}', ":1: no query id"),
        ('{"qid": "1", "responses": []}\n{"qid": 1, "responses": []}', ":2: query '1' is answered twice"),
        ('{"qid": "1", "responses": [{"citations": []}]}', "field 'responses[0].text': a sentence needs a text"),
        (
            '{"qid": "1", "references": ["a"], "answer": [{"text": "x", "citations": [1]}]}',
            "field 'answer[0].citations': found 1, an index into the 1 references, from 0, is expected",
        ),
        ('{"qid": "1", "references": ["a"], "answer": [{"text": "x", "citations": ["a"]}]}', 'found "a", an index'),
        ('{"qid": "1", "responses": [{"text": "x", "citations": [{}]}]}', "found {}, an id is expected"),
        ('{"qid": "1", "responses": [{"text": "x", "citations": {"a": "high"}}]}', "a finite number is expected"),
    ],
)
def test_errors(content: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, content)
    assert says in str(caught.value)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "sentences", "citations"),
    [("llm-gold-run.jsonl", 164, 247), ("official-submission-skeleton.jsonl", 564, 470)],
)
def test_longeval(shared_data: Path, name: str, sentences: int, citations: int) -> None:
    answers = read_answers(shared_data / "longeval26-task4" / name)
    assert (len(answers), sum(len(answer.references) for answer in answers)) == (47, 470)
    found = [sentence for answer in answers for sentence in answer.sentences]
    assert (len(found), sum(len(sentence.doc_ids) for sentence in found)) == (sentences, citations)
