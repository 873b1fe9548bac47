"""alpha-nDCG and sub-topic recall of our own, by hand and against pyndeval."""

from __future__ import annotations

import math

import pyndeval
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancer.evaluation.alpha_ndcg import alpha_ndcg, gains, ideal_gains, sub_topic_recall

ANSWERS = {"1": {"a", "b"}, "2": {"a"}, "3": {"c"}}


def test_a_gain_halves_each_time_a_sub_topic_is_answered_again() -> None:
    assert gains(["b", "x", "a", "c"], ANSWERS, alpha=0.5) == [1.0, 0.0, 1.5, 1.0]


def test_the_ideal_takes_the_highest_gain_and_of_equal_ones_the_last_id() -> None:
    # a: 2; then b (.5) or c (1): c; then b
    assert ideal_gains(ANSWERS, cutoff=10, alpha=0.5) == [2.0, 1.0, 0.5]
    # "y" and "z" tie at 1; with "z" first "x" adds 1 + .5, with "y" first only 1.5 as well, but of other sub-topics
    answers = {"1": {"z", "x"}, "2": {"y"}, "3": {"x"}}
    assert ideal_gains(answers, cutoff=2, alpha=0.5) == [2.0, 1.0]


def test_by_hand() -> None:
    # b, x, c against a, c, b: 1 + 0 + 1/2 over 2 + 1/log2(3) + .5/2
    expected = (1 + 1 / 2) / (2 + 1 / math.log2(3) + 0.5 / 2)
    assert alpha_ndcg(["b", "x", "c"], ANSWERS, cutoff=3) == pytest.approx(expected)
    assert alpha_ndcg(["a", "c", "b"], ANSWERS, cutoff=50) == pytest.approx(1.0)
    assert sub_topic_recall(["b", "x", "c"], ANSWERS, cutoff=2) == pytest.approx(1 / 3)
    assert sub_topic_recall(["b", "x", "c"], ANSWERS, cutoff=3) == pytest.approx(2 / 3)


@pytest.mark.parametrize("answers", [{}, {"1": set[str]()}])
def test_nothing_to_find_is_zero(answers: dict[str, set[str]]) -> None:
    assert alpha_ndcg(["a"], answers, cutoff=5) == 0.0
    assert sub_topic_recall(["a"], answers, cutoff=5) == 0.0


def test_an_empty_ranking_is_zero() -> None:
    assert alpha_ndcg([], ANSWERS, cutoff=5) == 0.0


@given(
    st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=25),
    st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.7, 1.0]),
    st.sampled_from([1, 5, 10, 20]),
    st.randoms(use_true_random=False),
)
def test_equal_to_pyndeval(rows: list[list[bool]], alpha: float, cutoff: int, random: object) -> None:
    doc_ids = [f"d{number}" for number in range(len(rows))]
    qrels = [("q", str(t), d, int(row[t])) for t in range(3) for d, row in zip(doc_ids, rows, strict=True)]
    answers = {str(t): {d for d, row in zip(doc_ids, rows, strict=True) if row[t]} for t in range(3)}
    ranking = [*doc_ids, "unjudged"]
    random.shuffle(ranking)  # type: ignore[attr-defined]
    run = [("q", doc_id, float(len(ranking) - place)) for place, doc_id in enumerate(ranking)]
    names = [f"alpha-nDCG@{cutoff}", f"strec@{cutoff}"]
    expected = pyndeval.ndeval(qrels, run, measures=names, alpha=alpha)["q"]
    assert alpha_ndcg(ranking, answers, cutoff=cutoff, alpha=alpha) == pytest.approx(expected[names[0]], abs=1e-6)
    assert sub_topic_recall(ranking, answers, cutoff=cutoff) == pytest.approx(expected[names[1]], abs=1e-6)
