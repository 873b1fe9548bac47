"""`listwise`: the model orders a window of documents, and windows slide from the back to the front (RankGPT, Sun et
al., "Is ChatGPT Good at Search?", EMNLP 2023; RankVicuna and RankZephyr follow it).

Each window sees what the one before has brought forward; the last one always begins with the head of the list, also
where its length does not fit (RankGPT's own loop stops before it). A further pass starts again from the order so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from lancer.engines.protocols import Message, Sampling
from lancer.prompts import listwise as prompt
from lancer.reranking.base import ByModel, Conversation, Reranked

_TOKENS_PER_DOCUMENT = 8  # "[100] > " is 5 or 6


class ListwiseRerank(ByModel):
    """One call at a time for each query; queries go on together."""

    shown: ClassVar[tuple[str, ...]] = ("window", "step", "passes")

    method: Literal["listwise"] = "listwise"
    window: int = Field(20, ge=2)
    step: int = Field(10, ge=1)
    passes: int = Field(1, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    """null = 8 for each document of a window; a model that thinks first needs more."""

    @model_validator(mode="after")
    def _no_gaps(self) -> Self:
        if self.step > self.window:
            raise ValueError(f"step {self.step} is more than window {self.window}: documents between would be lost")
        return self

    def sampling(self) -> Sampling:
        """At temperature 0."""
        return Sampling(max_tokens=self.max_tokens or _TOKENS_PER_DOCUMENT * self.window)

    @property
    def together(self) -> int:
        """A window."""
        return self.window

    def messages(self, query: str, documents: Sequence[str]) -> list[Message]:
        """About one window."""
        return prompt.render(query, documents)

    def rerank(self, query: str, documents: Sequence[str]) -> Conversation:
        """Windows over the order so far; one whose call failed or whose answer names nothing stays as it is."""
        order = list(range(len(documents)))
        faults: Counter[str] = Counter()
        for _ in range(self.passes):
            for start, end in windows(len(order), self.window, self.step):
                inside = order[start:end]
                (answer,) = yield [self.messages(query, [documents[i] for i in inside])]
                if answer.error:
                    faults["error"] += 1
                    continue
                read = prompt.read_order(answer.text, len(inside), cut=answer.finish == "length")
                order[start:end] = [inside[place] for place in read.order]
                if read.read:
                    faults.update(missing=read.missing, unknown=read.unknown, repeated=read.repeated)
                else:
                    faults["unreadable"] += 1
        return Reranked(order, None, faults)

    def prompt_identity(self) -> str:
        """The prompt's text and the version of its reader."""
        return f"{prompt.TEMPLATE}\0{prompt.VERSION}"


def windows(n: int, window: int, step: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each window over n documents, from the back; one document needs none."""
    start, end = n - window, n
    while n > 1:
        yield max(start, 0), end
        if start <= 0:
            return
        start, end = start - step, end - step
