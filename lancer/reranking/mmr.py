"""`mmr`: relevant and unlike what is chosen already, by embeddings (Carbonell and Goldstein, 1998).

Takes, one by one, the document with the highest lambda * cosine(query, document) - (1 - lambda) * (highest cosine with
a chosen document). The scorer's cosines are clipped at 0: texts that point away from each other count as unrelated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field

from lancer.engines.protocols import Block
from lancer.reranking.base import ByScorer, FloatArray, Reranked


class MmrRerank(ByScorer):
    """The documents are also the block's sub-questions: an engine that marks queries marks them there."""

    kinds: ClassVar[tuple[str, ...]] = ("bi-encoder",)
    shown: ClassVar[tuple[str, ...]] = ("lambda_",)

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)  # `lambda` is a word of Python

    method: Literal["mmr"] = "mmr"
    lambda_: float = Field(0.5, ge=0, le=1, alias="lambda")
    """1 = relevance only."""

    def block(self, query: str, documents: Sequence[str]) -> Block:
        """Every document with the query and with every document."""
        return Block(tuple(documents), (query, *documents))

    def reranked(self, scores: FloatArray) -> Reranked:
        """Ties go to the earlier document; one whose relevance is not known comes last."""
        relevance, likeness = scores[:, 0], np.nan_to_num(scores[:, 1:])
        lost = np.isnan(relevance)
        worth = self.lambda_ * relevance
        nearest = np.zeros(len(scores))  # so the first choice is by relevance alone
        left = ~lost
        order: list[int] = []
        while left.any():
            gain = np.where(left, worth - (1.0 - self.lambda_) * nearest, -np.inf)
            best = int(gain.argmax())
            order.append(best)
            left[best] = False
            nearest = np.maximum(nearest, likeness[:, best])
        return Reranked(order + np.flatnonzero(lost).tolist(), relevance, Counter(error=int(lost.sum())))
