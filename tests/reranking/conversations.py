"""A method held with an `answer` of the test: from the documents that a prompt shows to the model's output."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from lancer.engines.protocols import Generation, Message
from lancer.reranking.base import ByModel, Reranked
from lancer.reranking.rounds import hold

Answer = Callable[[list[str]], str | Generation]


def shown(prompt: Sequence[Message]) -> list[str]:
    """The documents in a prompt, in order."""
    return re.findall(r"<document[^>]*>\n(.*?)\n</document>", prompt[-1]["content"], re.S)


def reranked(step: ByModel, documents: Sequence[str], answer: Answer) -> tuple[Reranked, list[list[list[str]]]]:
    """The result, and per round, per prompt the documents that were shown."""
    rounds: list[list[list[str]]] = []

    def ask(prompts: list[list[Message]]) -> list[Generation]:
        rounds.append([shown(prompt) for prompt in prompts])
        answers = [answer(documents) for documents in rounds[-1]]
        return [a if isinstance(a, Generation) else Generation(text=a) for a in answers]

    return hold(step.rerank("how deep?", documents), ask), rounds


def by_number(documents: list[str]) -> list[int]:
    """Their places, the one with the highest number first."""
    return sorted(range(len(documents)), key=lambda i: -int(documents[i]))
