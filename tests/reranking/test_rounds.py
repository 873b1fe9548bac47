from __future__ import annotations

from collections.abc import Generator

from lancer.reranking.rounds import hold, noting, together


def counting(name: str, questions: list[int]) -> Generator[list[str], list[str], str]:
    """Asks so many questions in each of its rounds; gives all the answers."""
    got: list[str] = []
    for n in questions:
        got += yield [f"{name}{i}" for i in range(n)]
    return " ".join(got)


def test_what_is_asked_in_one_round_goes_out_together_and_each_gets_its_own_answers() -> None:
    rounds: list[list[str]] = []

    def ask(questions: list[str]) -> list[str]:
        rounds.append(questions)
        return [q.upper() for q in questions]

    results = hold(together([counting("a", [1, 2]), counting("b", []), counting("c", [2])]), ask)
    assert results == ["A0 A0 A1", "", "C0 C1"]
    assert rounds == [["a0", "c0", "c1"], ["a0", "a1"]]


def test_conversations_nest_and_are_noted() -> None:
    notes: list[str] = []
    inner = together([counting("a", [1]), counting("b", [1, 1])])
    assert hold(noting(inner, notes), lambda questions: questions) == ["a0", "b0 b0"]
    assert notes == ["a0", "b0", "b0"]


def test_nothing_to_ask_is_not_asked() -> None:
    def refuse(questions: list[str]) -> list[str]:
        raise AssertionError(questions)

    assert hold(together([counting("a", [])]), refuse) == [""]
