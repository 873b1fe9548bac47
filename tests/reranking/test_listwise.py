from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from lancer.engines.protocols import Generation
from lancer.reranking.listwise import ListwiseRerank, windows
from tests.reranking.conversations import by_number, reranked


def ordered(documents: list[str]) -> str:
    return " > ".join(f"[{i + 1}]" for i in by_number(documents))


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (100, [(80, 100), (70, 90), (60, 80), (50, 70), (40, 60), (30, 50), (20, 40), (10, 30), (0, 20)]),
        (25, [(5, 25), (0, 15)]),  # RankGPT's own loop ends after the first one
        (21, [(1, 21), (0, 11)]),
        (20, [(0, 20)]),
        (7, [(0, 7)]),
        (1, []),
        (0, []),
    ],
)
def test_windows_reach_the_head(n: int, expected: list[tuple[int, int]]) -> None:
    assert list(windows(n, 20, 10)) == expected


@pytest.mark.parametrize("n", range(2, 60, 7))
@pytest.mark.parametrize(("window", "step"), [(20, 10), (4, 3), (5, 5), (2, 1)])
def test_windows_leave_nothing_out_and_overlap(n: int, window: int, step: int) -> None:
    found = list(windows(n, window, step))
    assert found[0][1] == n
    assert found[-1][0] == 0
    assert {i for start, end in found for i in range(start, end)} == set(range(n))
    assert all(1 <= end - start <= window for start, end in found)


def test_the_best_of_the_back_come_to_the_front_in_one_pass() -> None:
    documents = [str(i) for i in range(45)]
    result, rounds = reranked(ListwiseRerank(engine="llm", window=10, step=5), documents, ordered)
    assert result.order[:5] == [44, 43, 42, 41, 40]
    assert sorted(result.order) == list(range(45))
    assert len(rounds) == 8
    assert all(len(prompts) == 1 for prompts in rounds)
    assert not +result.faults


def test_each_pass_sees_the_last_order() -> None:
    documents = [str(i) for i in random.Random(1).sample(range(30), 30)]
    result, rounds = reranked(ListwiseRerank(engine="llm", window=10, step=5, passes=5), documents, ordered)
    assert [int(documents[i]) for i in result.order] == list(range(29, -1, -1))
    first, second = rounds[4][0], rounds[5][0]  # the last window of a pass holds the head, the next begins at the back
    assert sorted(first, key=int, reverse=True)[0] == "29"
    assert second != documents[20:]


def test_malformed_answers_are_repaired_and_counted() -> None:
    answers: Iterator[str | Generation] = iter(
        ["[3] > [3] > [9]", "no idea", Generation(text="", error="too long", finish="error")]
    )
    step = ListwiseRerank(engine="llm", window=4, step=2)
    result, _ = reranked(step, [*"abcdefgh"], lambda documents: next(answers))
    assert result.order == [0, 1, 2, 3, 6, 4, 5, 7]
    assert +result.faults == {"missing": 3, "repeated": 1, "unknown": 1, "unreadable": 1, "error": 1}


def test_a_refusal_or_an_output_that_was_cut_brings_no_document_forward() -> None:
    step = ListwiseRerank(engine="llm", window=3, step=2)
    result, _ = reranked(step, [*"abc"], lambda documents: "I cannot rank these 3 documents.")
    assert (result.order, +result.faults) == ([0, 1, 2], {"unreadable": 1})
    result, _ = reranked(step, [*"abc"], lambda documents: Generation(text="2 > 3", finish="length"))
    assert (result.order, +result.faults) == ([1, 0, 2], {"missing": 2})


def test_one_document_needs_no_call() -> None:
    result, rounds = reranked(ListwiseRerank(engine="llm"), ["only"], ordered)
    assert (result.order, rounds) == ([0], [])


def test_a_step_wider_than_the_window_is_refused() -> None:
    with pytest.raises(ValidationError, match="documents between would be lost"):
        ListwiseRerank(engine="llm", window=5, step=6)


def test_the_tag_says_what_was_done() -> None:
    step = ListwiseRerank(engine="llm", keep=10, passes=2)
    assert step.tag() == "listwise(depth=100,window=20,step=10,passes=2,keep=10)"
    assert step.identity() != ListwiseRerank(engine="llm", keep=10).identity()
    assert step.identity() == step.model_copy(update={"name": "x", "engine": "other"}).identity()
