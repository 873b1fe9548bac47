"""Nugget measures of answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lancer.errors import InputError, UsageError
from lancer.evaluation.nuggets import MEASURES, evaluate_nuggets, nugget_scores
from lancer.formats.nuggets import Nugget, Topic, read_nuggets


def topic(*nuggets: tuple[str, str | None], query_id: str = "q") -> Topic:
    return Topic(query_id, None, tuple(Nugget(f"fact {n}", i, a) for n, (i, a) in enumerate(nuggets)))


MIXED = topic(
    ("vital", "support"),
    ("vital", "partial_support"),
    ("vital", "not_support"),
    ("okay", "support"),
    ("okay", "partial_support"),
)


def test_by_hand() -> None:
    assert nugget_scores(MIXED) == pytest.approx(
        {
            "strict_vital_score": 1 / 3,
            "strict_all_score": 2 / 5,
            "vital_score": 1.5 / 3,
            "all_score": 3 / 5,
            "strict_weighted_score": 1.5 / 4,
            "weighted_score": 2.25 / 4,
        }
    )


def test_words_nobody_knows() -> None:
    """An unknown importance weighs 0 in the weighted measures and counts in the all-measures; an unknown assignment is
    no support."""
    odd = topic(("vital", "support"), ("not_relevant", "support"), ("vital", "established"))
    scores = nugget_scores(odd)
    assert scores["all_score"] == pytest.approx(2 / 3)
    assert scores["weighted_score"] == pytest.approx(1 / 2)
    assert "not_relevant 1" in evaluate_nuggets([odd]).notes[1]
    assert evaluate_nuggets([odd]).notes[0] == "topics without vital nuggets, counted 0 (policy zero): 0"


class TestWithoutVitalNuggets:
    TOPICS = (topic(("okay", "support"), query_id="q1"), topic(("vital", "support"), query_id="q2"))

    def test_zero(self) -> None:
        evaluation = evaluate_nuggets(self.TOPICS)
        assert evaluation.per_query["vital_score"] == {"q1": 0.0, "q2": 1.0}
        assert evaluation.mean["vital_score"] == 0.5
        assert evaluation.mean["all_score"] == 1.0
        assert evaluation.notes == ("topics without vital nuggets, counted 0 (policy zero): 1 (q1)",)

    def test_skip(self) -> None:
        evaluation = evaluate_nuggets(self.TOPICS, without_vital="skip")
        assert evaluation.per_query["vital_score"] == {"q2": 1.0}
        assert evaluation.mean["vital_score"] == 1.0
        assert evaluation.per_query["all_score"] == {"q1": 1.0, "q2": 1.0}
        assert evaluation.notes == (
            "topics without vital nuggets, left out of the measures concerned (policy skip): 1 (q1)",
        )

    def test_nothing_left(self) -> None:
        with pytest.raises(InputError, match="no topic has a nugget that counts for strict_vital_score, vital_score"):
            evaluate_nuggets(self.TOPICS[:1], without_vital="skip")

    def test_an_unknown_policy(self) -> None:
        with pytest.raises(UsageError, match="allowed: skip, zero"):
            evaluate_nuggets(self.TOPICS, without_vital="ignore")


def test_a_nugget_without_an_assignment_is_an_error() -> None:
    with pytest.raises(InputError, match="topic 'q' has a nugget without an assignment: 'fact 0'"):
        evaluate_nuggets([topic(("vital", None))])


def test_no_topic_is_an_error() -> None:
    with pytest.raises(InputError, match="no topic"):
        evaluate_nuggets([])


@pytest.mark.shared
def test_all_six_on_rag24(shared_data: Path) -> None:
    folder = shared_data / "rag24-nuggets"
    evaluation = evaluate_nuggets(read_nuggets(folder / "assignments.gpt4o.jsonl.gz"))
    expected = [json.loads(line) for line in (folder / "metrics.gpt4o.jsonl").read_text().splitlines()]
    assert len(expected) == 76
    for scores in expected:
        for name in MEASURES:
            assert evaluation.per_query[name][scores["qid"]] == pytest.approx(scores[name], abs=1e-12), name


@pytest.mark.shared
def test_unknown_importance_is_what_decides_the_weighted_two(shared_data: Path) -> None:
    """With other weights for unknown words than 0 the published values are missed on exactly these topics."""
    folder = shared_data / "rag24-nuggets"
    found = {}
    for read in read_nuggets(folder / "assignments.gpt4o.jsonl.gz"):
        known = {"vital", "okay"}
        as_okay = [
            Nugget(n.text, n.importance if n.importance in known else "okay", n.assignment) for n in read.nuggets
        ]
        published, other = (
            nugget_scores(Topic(read.query_id, None, tuple(nuggets)))["weighted_score"]
            for nuggets in (read.nuggets, as_okay)
        )
        assert published is not None
        assert other is not None
        if abs(published - other) > 1e-12:
            found[read.query_id] = (round(published, 4), round(other, 4))
    assert found == {"2024-224013": (0.4032, 0.4054), "2024-44329": (0.25, 0.2273)}
