"""Reciprocal rank fusion of several rankings of documents (Cormack, Clarke and Büttcher, SIGIR 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lancer.engines.protocols import Hit

RRF_K: Final = 60  # the paper's


def reciprocal_rank_fusion(rankings: Sequence[Sequence[Hit]]) -> list[Hit]:
    """All documents by the sum of 1 / (60 + rank) over the rankings that hold them; ranks from 1.

    Ties: the first ranking's order, then the second's, and so on; one that a ranking lacks comes after those it holds.
    """
    places = [{hit.doc_id: rank for rank, hit in enumerate(ranking, start=1)} for ranking in rankings]
    scores: dict[str, float] = {}
    for ranks in places:
        for doc_id, rank in ranks.items():
            scores[doc_id] = scores.get(doc_id, 0.0) + 1.0 / (RRF_K + rank)

    def key(doc_id: str) -> tuple[float, ...]:
        return (-scores[doc_id], *(float(ranks.get(doc_id, len(scores) + 1)) for ranks in places))

    return [Hit(doc_id, scores[doc_id]) for doc_id in sorted(scores, key=key)]
