"""`pointwise`: each document by itself, by the probability that the model says Yes (papers/002, section 17.5.1).

p(Yes) = exp(log p(Yes)) / (exp(log p(Yes)) + exp(log p(No))), from the log-probabilities of the first token. An engine
that gives none leaves the document without a score.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from lancer.engines.protocols import Generation, Sampling
from lancer.prompts import relevance as prompt
from lancer.reranking.base import ByModel, Conversation, by_score
from lancer.text.words import first_words


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

    def rerank(self, query: str, documents: Sequence[str]) -> Conversation:
        """By p(Yes)."""
        answers = yield [prompt.yes_no(query, first_words(text, self.max_words)) for text in documents]
        scores = np.array([_probability(answer) for answer in answers], dtype=np.float64)
        errors = sum(bool(answer.error) for answer in answers)
        return by_score(scores, Counter(error=errors, unreadable=int(np.isnan(scores).sum()) - errors))

    def prompt_identity(self) -> str:
        """The prompt's text."""
        return prompt.YES_NO


def _probability(answer: Generation) -> float:
    """NaN without two finite log-probabilities; one of them may be minus infinity: that answer cannot come."""
    if answer.error or len(answer.logprobs) != len(prompt.ANSWERS):
        return math.nan
    yes, no = answer.logprobs
    if math.isnan(yes) or math.isnan(no) or max(yes, no) == -math.inf:
        return math.nan
    return 1.0 / (1.0 + math.exp(min(no - yes, 700.0)))
