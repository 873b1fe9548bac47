"""Qrels as the measures need them."""

from __future__ import annotations

from lancer.evaluation.judgments import Judgments
from lancer.formats.qrels import Qrel

QRELS = [
    Qrel("q2", "b", "d1", 1),
    Qrel("q1", "a", "d1", 1),
    Qrel("q1", "b", "d1", 3),
    Qrel("q1", "b", "d2", -1),
    Qrel("q3", "a", "d9", -2),
]


def test_the_grade_of_a_document_is_its_highest_over_sub_topics() -> None:
    judgments = Judgments(QRELS)
    assert judgments.queries == ("q2", "q1", "q3")
    assert judgments.grades == {"q2": {"d1": 1}, "q1": {"d1": 3}, "q3": {}}
    assert judgments.highest == 3
    assert judgments.diverse


def test_a_negative_grade_is_unjudged_but_its_query_and_sub_topic_stay() -> None:
    judgments = Judgments(QRELS)
    assert judgments.negative == 2
    assert judgments.sub_topics["q3"] == {"a": {}}
    assert not Judgments([Qrel("q", "0", "d", 1)]).diverse


def test_sub_topics_come_in_the_order_of_the_whole_file() -> None:
    assert list(Judgments(QRELS).sub_topics["q1"]) == ["b", "a"]
    assert Judgments(QRELS).answers("q1", 2) == {"b": {"d1"}, "a": set()}
