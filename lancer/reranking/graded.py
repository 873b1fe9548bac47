"""`graded`: each document by itself, by the grade that the model writes (papers/002, section 17.5.1)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from lancer.engines.protocols import Generation, Message, Sampling
from lancer.prompts import judge
from lancer.prompts import relevance as prompt
from lancer.prompts.reading import read_rating
from lancer.reranking.base import ByModel, Conversation, by_score


class GradedRerank(ByModel):
    """One call per document, all in one round; equal grades keep the order so far."""

    pairwise: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("grades", "threshold")

    method: Literal["graded"] = "graded"
    grades: Literal[3, 5] = 3
    """The highest one: 0 to 3, as in TREC's judgments, or 0 to 5."""
    structured: bool = True
    """Restrict the output to the digits; off = free text, for models that think first and servers without choices."""
    max_tokens: int = Field(3, ge=1)
    threshold: float | None = Field(None, ge=0, le=5)
    """Of the grade; documents below it, or without one, are not kept. null = all are."""

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.threshold is not None and self.threshold > self.grades:
            raise ValueError(
                f"threshold {self.threshold:g} is above the highest grade {self.grades}: nothing reaches it"
            )
        return self

    @property
    def least(self) -> float | None:
        """The threshold."""
        return self.threshold

    def sampling(self) -> Sampling:
        """At temperature 0."""
        digits = tuple(str(grade) for grade in range(self.grades + 1))
        return Sampling(max_tokens=self.max_tokens, choice=digits if self.structured else None)

    @property
    def together(self) -> int:
        """One."""
        return 1

    def messages(self, query: str, documents: Sequence[str]) -> list[Message]:
        """About one document."""
        return prompt.graded(query, documents[0], self.grades)

    def rerank(self, query: str, documents: Sequence[str]) -> Conversation:
        """By grade."""
        answers = yield [self.messages(query, [text]) for text in documents]
        scores = np.array([self._grade(answer) for answer in answers], dtype=np.float64)
        errors = sum(bool(answer.error) for answer in answers)
        return by_score(scores, Counter(error=errors, unreadable=int(np.isnan(scores).sum()) - errors))

    def prompt_identity(self) -> str:
        """The prompt's text and the version of the reader of ratings."""
        return f"{prompt.GRADED}\0{judge.VERSION}"

    def _grade(self, answer: Generation) -> float:
        if answer.error:
            return math.nan
        # A choice of one token also ends at the token limit; there it is no sign of a number that goes on. What is no
        # choice comes from a server that ignored the restriction.
        chosen = answer.text.strip() in (self.sampling().choice or ())
        cut = answer.finish == "length" and not chosen
        value = read_rating(answer.text, scale=(0, self.grades), cut=cut).value
        return math.nan if value is None else float(value)
