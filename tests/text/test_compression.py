from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lancer.text.compression import best_sentences, joined, runs
from lancer.text.sentences import Span, sentence_spans


def test_the_best_ones_stay_in_the_order_of_the_text() -> None:
    assert best_sentences([0.5, 0.1, 0.9, 0.4, 0.6], limit=3, threshold=0.4) == [0, 2, 4]
    assert best_sentences([0.5, 0.1, 0.9, 0.4, 0.6], limit=9, threshold=0.4) == [0, 2, 3, 4]
    assert best_sentences([0.5, 0.5, 0.5], limit=2, threshold=0.4) == [0, 1]
    assert best_sentences([0.39], limit=3, threshold=0.4) == []
    assert best_sentences([], limit=3, threshold=0.4) == []


@given(st.lists(st.floats(0, 1)), st.integers(1, 5), st.floats(0, 1))
def test_no_sentence_that_is_left_out_is_better_than_one_that_stays(
    scores: list[float], limit: int, threshold: float
) -> None:
    kept = best_sentences(scores, limit=limit, threshold=threshold)
    assert kept == sorted(set(kept))
    assert len(kept) == min(limit, sum(score >= threshold for score in scores))
    left = [score for i, score in enumerate(scores) if i not in kept and score >= threshold]
    assert max(left, default=0) <= min((scores[i] for i in kept), default=1)


def test_joined() -> None:
    text = "One is here.  Two\nis. Three."
    spans = sentence_spans(text)
    assert joined(text, [spans[0], spans[2]]) == "One is here. Three."
    assert joined(text, [Span(0, 3)]) == "One"
    assert joined(text, []) == ""


@given(st.lists(st.integers(1, 12), max_size=20))
def test_runs_hold_everything_in_order_and_are_as_long_as_fits(sizes: list[int]) -> None:
    def size(run: range) -> int:
        return sum(sizes[i] for i in run)

    found = runs(len(sizes), lambda run: size(run) <= 10)
    assert [i for run in found for i in run] == list(range(len(sizes)))
    assert all(size(run) <= 10 or len(run) == 1 for run in found)
    for run in found[:-1]:
        assert size(run) + sizes[run.stop] > 10
