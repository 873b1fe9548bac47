"""Nugget files, with the labels that a model made up kept as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from lancer.errors import InputError
from lancer.formats.nuggets import Assignment, Importance, Nugget, Topic, read_nuggets, unknown_words, write_nuggets

TOPICS = [
    Topic("q1", "why?", (Nugget("because", "vital", "support"), Nugget("also", "okay", "not_support"))),
    Topic("q2", None, (Nugget("listed only", "okay"), Nugget("odd", "vital", "established"))),
]


def test_round_trip(tmp_path: Path) -> None:
    write_nuggets(tmp_path / "a.jsonl", TOPICS)
    assert read_nuggets(tmp_path / "a.jsonl") == TOPICS


def test_unknown_words_are_counted() -> None:
    assert unknown_words(TOPICS) == {"established": 1}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no topic"),
        ('{"qid": "1"}', ":1: field 'nuggets': found null, a list is expected"),
        ('{"nuggets": []}', ":1: no query id"),
        ('{"qid": "1", "nuggets": []}\n{"qid": "1", "nuggets": []}', ":2: query '1' appears twice"),
        ('{"qid": "1", "nuggets": [{"importance": "vital"}]}', "field 'nuggets[0].text': is missing or empty"),
        ('{"qid": "1", "nuggets": [{"text": "x"}]}', "field 'nuggets[0].importance': is missing or empty"),
        ('{"qid": "1", "nuggets": [{"text": "x", "importance": 1}]}', "field 'nuggets[0].importance': found 1"),
    ],
)
def test_errors(content: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "nuggets.jsonl"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_nuggets(path)
    assert says in str(caught.value)


@pytest.mark.shared
def test_rag24(shared_data: Path) -> None:
    topics = read_nuggets(shared_data / "rag24-nuggets" / "assignments.gpt4o.jsonl.gz")
    nuggets = [nugget for topic in topics for nugget in topic.nuggets]
    assert (len(topics), len(nuggets)) == (76, 1474)
    assert sum(nugget.importance == Importance.vital for nugget in nuggets) == 855
    assert sum(nugget.assignment == Assignment.support for nugget in nuggets) == 419
    assert sum(nugget.importance not in set(Importance) for nugget in nuggets) == 8
    assert unknown_words(topics).total() == 8 + 11
