"""A funnel of three stages, by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancer.errors import InputError, UsageError
from lancer.evaluation.measures import parse_measures
from lancer.evaluation.stages import Lift, Step, evaluate_stages
from lancer.formats.qrels import Qrel

QRELS = [
    Qrel("q1", "1", "a", 4),
    Qrel("q1", "1", "b", 1),
    Qrel("q1", "2", "c", 4),
    Qrel("q1", "3", "e", 4),
    Qrel("q1", "1", "x", 0),
    Qrel("q2", "1", "m", 2),
]
FIRST = {"q1": ["x", "y", "a", "b", "c"], "q2": ["n", "m"], "unjudged": ["a"]}
SECOND = {"q1": ["a", "c", "x"], "q2": ["m"]}
STEPS = [Step(name="first", orders=FIRST), Step(name="second", orders=SECOND), Step.cut("third", SECOND, 1)]


def near(before: float | None, first: float | None) -> object:
    """Equal to a lift of about these."""
    return pytest.approx((before, first))


def both(lift: Lift) -> tuple[float | None, float | None]:
    return lift.before, lift.first


def test_each_stage_is_measured_by_the_set_that_goes_on() -> None:
    first, second, third = evaluate_stages(STEPS, QRELS)
    assert (first.documents, second.documents, third.documents) == (3.5, 2.0, 1.0)
    # q1 has four relevant documents and three answered sub-topics, q2 one of each.
    assert first.means == {
        "recall": pytest.approx((3 / 4 + 1) / 2),
        "precision": pytest.approx((3 / 5 + 1 / 2) / 2),
        "sub-topic recall": pytest.approx((2 / 3 + 1) / 2),
    }
    assert second.means == {
        "recall": pytest.approx((2 / 4 + 1) / 2),
        "precision": pytest.approx((2 / 3 + 1) / 2),
        "sub-topic recall": pytest.approx((2 / 3 + 1) / 2),
    }
    assert third.means == {
        "recall": pytest.approx((1 / 4 + 1) / 2),
        "precision": pytest.approx(1.0),
        "sub-topic recall": pytest.approx((1 / 3 + 1) / 2),
    }


def test_lifts_are_quotients_of_means_over_the_stage_before_and_the_first() -> None:
    first, second, third = evaluate_stages(STEPS, QRELS)
    assert first.lifts["recall"] == first.equal_depth == Lift(before=None, first=None)
    assert both(second.lifts["recall"]) == near(0.75 / 0.875, 0.75 / 0.875)
    assert both(third.lifts["precision"]) == near(1 / (5 / 6), 1 / 0.55)
    # The first three of q1 hold one relevant document, the first one of q2 none: (1/3 + 0) / 2.
    assert both(second.equal_depth) == near((5 / 6) / (1 / 6), (5 / 6) / (1 / 6))
    # Cutting the second order is what the third does; the first of either query is not relevant in the first.
    assert third.equal_depth == Lift(before=1.0, first=None)


def test_rel_says_what_is_relevant() -> None:
    (first,) = evaluate_stages(STEPS[:1], QRELS, rel=4)
    assert first.means["recall"] == pytest.approx((2 / 3 + 0) / 2)
    assert first.means["precision"] == pytest.approx((2 / 5 + 0) / 2)


def test_further_measures_see_the_order_of_what_goes_on() -> None:
    first, second, _ = evaluate_stages(STEPS, QRELS, parse_measures("RR P@1"))
    assert first.means["RR"] == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert second.means["RR"] == 1.0
    assert second.lifts["P@1"] == Lift(before=None, first=None)
    assert list(first.means) == ["recall", "precision", "sub-topic recall", "RR", "P@1"]


def test_judgments_without_sub_topics_give_no_sub_topic_recall() -> None:
    (first,) = evaluate_stages([Step(name="s", orders={"q": ["a", "b"]})], [Qrel("q", "0", "a", 1)])
    assert first.means == {"recall": 1.0, "precision": 0.5}


def test_a_stage_that_keeps_nothing_is_0_and_says_so() -> None:
    last = evaluate_stages([STEPS[0], Step(name="strict", orders={"q1": []})], QRELS)[1]
    assert set(last.means.values()) == {0.0}
    assert last.documents == 0
    assert "no document of a judged query goes on" in last.notes


def test_queries_that_are_missing_count_0() -> None:
    (first,) = evaluate_stages([Step(name="s", orders={"q2": ["m"]})], QRELS)
    assert first.means["recall"] == 0.5
    assert any("counted 0: 1 (q1)" in note for note in first.notes)


def test_what_cannot_be_evaluated() -> None:
    with pytest.raises(InputError, match="no query in common"):
        evaluate_stages([Step(name="s", orders={"other": ["m"]})], QRELS)
    with pytest.raises(UsageError, match="names of their own"):
        evaluate_stages([STEPS[0], STEPS[0]], QRELS)
    with pytest.raises(UsageError, match="found: none"):
        evaluate_stages([], QRELS)


@given(st.permutations("abcexy"), st.integers(0, 6), st.integers(0, 6))
def test_a_funnel_never_gains_recall(order: list[str], wide: int, narrow: int) -> None:
    wide, narrow = max(wide, narrow), min(wide, narrow)
    steps = [Step.cut(str(k), {"q1": order, "q2": ["m"]}, k) for k in dict.fromkeys((7, wide, narrow))]
    rows = evaluate_stages(steps, QRELS)
    for before, after in itertools.pairwise(rows):
        assert after.means["recall"] <= before.means["recall"]
        assert after.means["sub-topic recall"] <= before.means["sub-topic recall"]
        assert after.equal_depth.before in (1.0, None)
