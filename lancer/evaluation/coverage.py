"""Cov@k, the share of a query's sub-questions that the top k documents answer: LANCER's measure (papers/000).

Written like any other measure: `Cov@10`, `Cov(tau=4)@10`, `Cov(tau=3,of='all')@10`. A sub-question is answered by a
document whose rating is at least tau (3 by default, as CRUX has it); a rating of 0 answers nothing. From a matrix of
probabilities tau is given in that scale: `Cov(tau=0.5)@10`. The denominator is named by `of`:

- `answerable` (default): sub-questions that at least one rated document of the query answers. `Cov(tau=t)@k` is then
  `StRecall(rel=t)@k`;
- `all`: every sub-question the query has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import ir_measures
from ir_measures import Measure, ParamInfo

Denominator = Literal["answerable", "all"]
Ratings = Mapping[str, Mapping[str, float]]


class _Cov(Measure):
    """Share of the sub-questions with a rating of at least `tau` in the top `cutoff`; computed by this module."""

    __name__ = "Cov"
    NAME = __name__
    PRETTY_NAME = "Coverage of sub-questions"
    SHORT_DESC = "The share of a query's sub-questions that the top k documents answer."
    SUPPORTED_PARAMS = {  # noqa: RUF012 - the base class declares it so
        "cutoff": ParamInfo(dtype=int, required=True, desc="ranking cutoff threshold"),
        "tau": ParamInfo(dtype=(int, float), default=3, desc="lowest rating that answers a sub-question"),
        "of": ParamInfo(dtype=str, choices=["answerable", "all"], default="answerable", desc="denominator"),
    }

    def __init__(self, **params: object) -> None:
        super().__init__(**params)  # type: ignore[no-untyped-call]


Cov = _Cov()
ir_measures.measures.register(Cov)


def coverage_curve(ranking: Sequence[str], ratings: Ratings, *, tau: float, of: Denominator, depth: int) -> list[float]:
    """Cov@1 ... Cov@depth of one query; zeros when the denominator is 0. Cov@k is its kth number.

    `ratings`: sub-question -> doc_id -> rating. A document without a rating answers nothing; a sub-question without any
    rating is still one of `all`.
    """
    answering = [{doc_id for doc_id, rating in row.items() if rating >= tau and rating > 0} for row in ratings.values()]
    total = len(answering) if of == "all" else sum(1 for doc_ids in answering if doc_ids)
    new_at = [0] * depth
    places = {doc_id: place for place, doc_id in reversed(list(enumerate(ranking[:depth])))}
    for doc_ids in answering:
        first = min((places[doc_id] for doc_id in doc_ids if doc_id in places), default=None)
        if first is not None:
            new_at[first] += 1
    curve, covered = [], 0
    for new in new_at:
        covered += new
        curve.append(covered / total if total else 0.0)
    return curve
