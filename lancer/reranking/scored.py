"""Order by a scorer's number for (query, document): what bi-encoder and cross-encoder have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from lancer.engines.protocols import Block
from lancer.reranking.base import ByScorer, FloatArray, Reranked, by_score


class Scored(ByScorer):
    """One score per document; a pair that the scorer could not score comes after all others, and is counted."""

    threshold: float | None = Field(None, ge=0, le=1)
    """Documents below it, or without a score, are not kept; null = all are. It belongs to one scorer: tune it."""

    @property
    def least(self) -> float | None:
        """The threshold."""
        return self.threshold

    def block(self, query: str, documents: Sequence[str]) -> Block:
        """Every document with the query."""
        return Block(tuple(documents), (query,))

    def reranked(self, scores: FloatArray) -> Reranked:
        """By the only column."""
        column = scores[:, 0]
        return by_score(column, Counter(error=int(np.isnan(column).sum())))
