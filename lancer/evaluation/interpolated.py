"""Interpolated precision at recall points (IPrec), by the rule of trec_eval 10.

A recall point becomes a number of relevant documents by rounding. trec_eval 9, which pytrec_eval and so ir_measures
have inside, adds .9 and cuts off, which depends on the platform and gives 48 instead of 47 of 474 documents at .1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet


def interpolated_precision(ranking: Sequence[str], relevant: AbstractSet[str], *, recall: float) -> float:
    """Highest precision at any depth that reaches `recall` (0..1); 0 if none does."""
    needed = max(1, math.floor(recall * len(relevant) + 0.5))
    found, best = 0, 0.0
    for depth, doc_id in enumerate(ranking, 1):
        if doc_id in relevant:
            found += 1
            if found >= needed:
                best = max(best, found / depth)
    return best
