"""`pointwise`: each document by itself, by the probability that the model says Yes (papers/002, section 17.5.1).

p(Yes) = exp(log p(Yes)) / (exp(log p(Yes)) + exp(log p(No))), from the log-probabilities of the first token. A document
has no score where the engine gives none, or where the model was about to write something else than the two.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from lancer.engines.protocols import Generation, Message, Sampling
from lancer.prompts import relevance as prompt
from lancer.prompts.reading_logprobs import MIN_MASS, expected
from lancer.reranking.base import ByModel, Conversation, by_score


class PointwiseRerank(ByModel):
    """One call of one token per document, all in one round."""

    pairwise: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("threshold",)

    method: Literal["pointwise"] = "pointwise"
    threshold: float | None = Field(None, ge=0, le=1)
    """Of p(Yes); documents below it, or without a score, are not kept. null = all are."""

    @property
    def least(self) -> float | None:
        """The threshold."""
        return self.threshold

    def sampling(self) -> Sampling:
        """The first token alone."""
        return Sampling(max_tokens=1, logprobs_of=prompt.ANSWERS)

    @property
    def together(self) -> int:
        """One."""
        return 1

    def messages(self, query: str, documents: Sequence[str]) -> list[Message]:
        """About one document."""
        return prompt.yes_no(query, documents[0])

    def rerank(self, query: str, documents: Sequence[str]) -> Conversation:
        """By p(Yes)."""
        answers = yield [self.messages(query, [text]) for text in documents]
        scores = np.array([_probability(answer) for answer in answers], dtype=np.float64)
        errors = sum(bool(answer.error) for answer in answers)
        return by_score(scores, Counter(error=errors, unreadable=int(np.isnan(scores).sum()) - errors))

    def prompt_identity(self) -> str:
        """The prompt's text, and which answers count."""
        return f"{prompt.YES_NO}\0{MIN_MASS}"


def _probability(answer: Generation) -> float:
    """NaN without `MIN_MASS` on the two answers; one log-probability may be minus infinity: that answer cannot come."""
    if answer.error or len(answer.logprobs) != len(prompt.ANSWERS):
        return math.nan
    yes, no = answer.logprobs
    if math.isnan(yes) or math.isnan(no):
        return math.nan
    probability, outside = expected((no, yes), lowest=0)  # of a scale whose digits are 0 and 1
    return probability if 1.0 - outside >= MIN_MASS else math.nan
