"""`setwise`: sorts by asking which document of a few helps most (Zhuang et al., "A Setwise Approach for Effective and
Highly Efficient Zero-shot Ranking with Large Language Models", SIGIR 2024).

Only the first `top` places are sorted; all other documents follow in the order given. `heap` is a heap whose nodes have
`set_size` - 1 children; its first nodes, which do not concern each other, are asked about together. `bubble` lets the
best document of overlapping sets rise from the back, once per place. A question that was asked before is not asked
again. A set that is larger than the labels is split; the winners meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import Field

from lancer.engines.protocols import Generation, Message, Sampling
from lancer.prompts import setwise as prompt
from lancer.reranking.base import ByModel, Conversation, Reranked
from lancer.reranking.rounds import together

Asking = Generator[list[list[Message]], list[Generation], int]
Sorting = Generator[list[list[Message]], list[Generation], list[int]]
Sifting = Generator[list[list[Message]], list[Generation], None]


class SetwiseRerank(ByModel):
    """The published settings sort 10 places with sets of 4."""

    shown: ClassVar[tuple[str, ...]] = ("sort", "set_size", "top")

    method: Literal["setwise"] = "setwise"
    sort: Literal["heap", "bubble"] = "heap"
    set_size: int = Field(4, ge=2)
    top: int = Field(10, ge=1)
    structured: bool = True
    """Restrict the output to the letters; off = free text, for models that think first and servers without choices."""
    max_tokens: int = Field(3, ge=1)

    def sampling(self) -> Sampling:
        """At temperature 0. All letters are allowed: one that stands for no document is unreadable."""
        labels = prompt.LABELS[: self.together]
        return Sampling(max_tokens=self.max_tokens, choice=labels if self.structured else None)

    @property
    def together(self) -> int:
        """A set, as far as there are labels."""
        return min(self.set_size, len(prompt.LABELS))

    def messages(self, query: str, documents: Sequence[str]) -> list[Message]:
        """About one set."""
        return prompt.render(query, documents)

    def rerank(self, query: str, documents: Sequence[str]) -> Conversation:
        """The best `top`, then the others as they were."""
        best = _Best(self, query, documents)
        sort = _heap if self.sort == "heap" else _bubble
        head = yield from sort(list(range(len(documents))), self.set_size, self.top, best)
        chosen = set(head)
        return Reranked([*head, *(i for i in range(len(documents)) if i not in chosen)], None, best.faults)

    def prompt_identity(self) -> str:
        """The prompt's text and the version of its reader."""
        return f"{prompt.TEMPLATE}\0{prompt.VERSION}"


@dataclass
class _Best:
    """Which document of a set is best; the first one where there is no answer."""

    step: SetwiseRerank
    query: str
    texts: Sequence[str]
    faults: Counter[str] = field(default_factory=Counter)
    known: dict[tuple[int, ...], int] = field(default_factory=dict)

    def of(self, documents: Sequence[int]) -> Asking:
        """The place in `documents` of the best one."""
        most = len(prompt.LABELS)
        groups = [list(range(at, min(at + most, len(documents)))) for at in range(0, len(documents), most)]
        winners = yield from together([self._ask(documents, group) for group in groups])
        while len(winners) > 1:
            groups = [winners[at : at + most] for at in range(0, len(winners), most)]
            winners = yield from together([self._ask(documents, group) for group in groups])
        return winners[0]

    def _ask(self, documents: Sequence[int], places: list[int]) -> Asking:
        """One of `places`."""
        if len(places) == 1:
            return places[0]
        asked = tuple(documents[place] for place in places)
        if asked not in self.known:
            (answer,) = yield [self.step.messages(self.query, [self.texts[i] for i in asked])]
            found = None if answer.error else prompt.parse(answer.text, len(asked))
            if found is None:
                self.faults["error" if answer.error else "unreadable"] += 1
            self.known[asked] = found or 0
        return places[self.known[asked]]


def _heap(documents: list[int], set_size: int, top: int, best: _Best) -> Sorting:
    children = set_size - 1
    for level in _levels_with_children(len(documents), children):
        yield from together([_sift(documents, node, children, best) for node in level])
    head: list[int] = []
    while documents and len(head) < top:
        head.append(documents[0])
        last = documents.pop()
        if documents and len(head) < top:
            documents[0] = last
            yield from _sift(documents, 0, children, best)
    return head


def _levels_with_children(n: int, children: int) -> list[list[int]]:
    """Nodes of a heap of n that have children, level by level from the bottom."""
    levels: list[list[int]] = []
    level = [0]
    while level and level[0] * children + 1 < n:
        levels.insert(0, [node for node in level if node * children + 1 < n])
        level = list(range(level[0] * children + 1, level[-1] * children + children + 1))
    return levels


def _sift(documents: list[int], node: int, children: int, best: _Best) -> Sifting:
    """Lets the document at a node sink until it is better than its children."""
    while (first := node * children + 1) < len(documents):
        family = [node, *range(first, min(first + children, len(documents)))]
        winner = family[(yield from best.of([documents[i] for i in family]))]
        if winner == node:
            return
        documents[node], documents[winner] = documents[winner], documents[node]
        node = winner


def _bubble(documents: list[int], set_size: int, top: int, best: _Best) -> Sorting:
    for place in range(min(top, len(documents) - 1)):
        end = len(documents)
        while end - place > 1:
            start = max(place, end - set_size)
            winner = start + (yield from best.of(documents[start:end]))
            documents[start], documents[winner] = documents[winner], documents[start]
            end = start + 1
    return documents[:top]
