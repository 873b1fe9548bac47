"""Conversations with an engine that go on at once, so that it has something to do: windows of several queries, branches
of one sort.

A conversation is a generator: it yields what it asks, is sent the answers in the same order, and returns its result.
What several of them ask in one round goes out as one list.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")


def together(conversations: Sequence[Generator[list[A], list[B], R]]) -> Generator[list[A], list[B], list[R]]:
    """All of them as one, round by round; their results in order. One that has ended leaves the others alone."""
    results: dict[int, R] = {}
    asked: dict[int, list[A]] = {}
    for i, conversation in enumerate(conversations):
        try:
            asked[i] = next(conversation)
        except StopIteration as end:
            results[i] = end.value
    while asked:
        answers = yield [question for questions in asked.values() for question in questions]
        at = 0
        for i, questions in list(asked.items()):
            own = answers[at : at + len(questions)]
            at += len(questions)
            try:
                asked[i] = conversations[i].send(own)
            except StopIteration as end:
                results[i] = end.value
                del asked[i]
    return [results[i] for i in range(len(conversations))]


def noting(conversation: Generator[list[A], list[B], R], notes: list[B]) -> Generator[list[A], list[B], R]:
    """The same conversation; every answer is also put into `notes`."""
    try:
        asked = next(conversation)
        while True:
            answers = yield asked
            notes.extend(answers)
            asked = conversation.send(answers)
    except StopIteration as end:
        result: R = end.value
        return result


def hold(conversation: Generator[list[A], list[B], R], ask: Callable[[list[A]], list[B]]) -> R:
    """Carries a conversation to its end; `ask` gives one answer per question."""
    try:
        asked = next(conversation)
        while True:
            asked = conversation.send(ask(asked))
    except StopIteration as end:
        result: R = end.value
        return result
