from __future__ import annotations

import random
from typing import Literal

import pytest

from lancer.engines.protocols import Generation
from lancer.prompts.setwise import LABELS
from lancer.reranking.setwise import SetwiseRerank
from tests.reranking.conversations import by_number, reranked


def best(documents: list[str]) -> str:
    return LABELS[by_number(documents)[0]]


@pytest.mark.parametrize("sort", ["heap", "bubble"])
@pytest.mark.parametrize("set_size", [2, 3, 4, 7, 50])
@pytest.mark.parametrize("n", [0, 1, 2, 5, 23])
def test_the_top_is_sorted_and_the_rest_stays(sort: Literal["heap", "bubble"], set_size: int, n: int) -> None:
    numbers = random.Random(n).sample(range(n), n)
    step = SetwiseRerank(engine="llm", sort=sort, set_size=set_size, top=6)
    result, _ = reranked(step, [str(i) for i in numbers], best)
    ranked = [numbers[i] for i in result.order]
    assert ranked[:6] == sorted(numbers, reverse=True)[:6]
    assert ranked[6:] == [i for i in numbers if i not in ranked[:6]]


def test_the_nodes_of_a_level_are_asked_about_together() -> None:
    _, rounds = reranked(SetwiseRerank(engine="llm", top=1), [str(i) for i in range(40)], best)
    assert len(rounds[0]) == 9  # 40 nodes with 3 children each: 13 have some, 9 of them on the lowest level
    assert all(len(documents) <= 4 for prompts in rounds for documents in prompts)


def test_a_set_larger_than_the_labels_is_split() -> None:
    documents = [str(i) for i in range(47)]
    result, rounds = reranked(SetwiseRerank(engine="llm", sort="bubble", set_size=50, top=1), documents, best)
    assert [[len(shown) for shown in prompts] for prompts in rounds] == [[20, 20, 7], [3]]
    assert result.order[0] == 46


def test_no_question_is_asked_twice() -> None:
    documents = [str(i) for i in random.Random(3).sample(range(30), 30)]
    for sort in ("heap", "bubble"):
        _, rounds = reranked(SetwiseRerank(engine="llm", sort=sort), documents, best)
        asked = [tuple(shown) for prompts in rounds for shown in prompts]
        assert len(set(asked)) == len(asked)


@pytest.mark.parametrize("sort", ["heap", "bubble"])
def test_without_answers_the_order_stays_and_it_is_counted(sort: Literal["heap", "bubble"]) -> None:
    answers = iter(range(1000))

    def failing(documents: list[str]) -> str | Generation:
        return Generation(text="", error="gone", finish="error") if next(answers) % 2 else "who knows"

    result, rounds = reranked(SetwiseRerank(engine="llm", sort=sort, top=1), [str(i) for i in range(8)], failing)
    assert result.order == list(range(8))
    assert result.faults["error"] + result.faults["unreadable"] == sum(map(len, rounds)) > 1


def test_only_as_many_letters_as_documents_are_allowed() -> None:
    assert SetwiseRerank(engine="llm", set_size=4).sampling().choice == ("A", "B", "C", "D")
    assert SetwiseRerank(engine="llm", set_size=99).sampling().choice == LABELS
    assert SetwiseRerank(engine="llm", structured=False).sampling().choice is None
