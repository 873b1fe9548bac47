"""Every selector by name: the one place where a new one is added."""

from __future__ import annotations

from typing import Final

from lancer.selection.base import Selector
from lancer.selection.greedy_alpha import GreedyAlpha
from lancer.selection.greedy_coverage import GreedyCoverage
from lancer.selection.greedy_expected import GreedyExpected
from lancer.selection.greedy_sum import GreedySum
from lancer.selection.max import Max
from lancer.selection.mmr import MaximalMarginalRelevance
from lancer.selection.pm2 import PM2
from lancer.selection.rrf import ReciprocalRankFusion
from lancer.selection.sum import Sum
from lancer.selection.xquad import XQuAD

SELECTORS: Final[dict[str, type[Selector]]] = {
    Sum.name: Sum,
    Max.name: Max,
    ReciprocalRankFusion.name: ReciprocalRankFusion,
    GreedySum.name: GreedySum,
    GreedyCoverage.name: GreedyCoverage,
    GreedyAlpha.name: GreedyAlpha,
    GreedyExpected.name: GreedyExpected,
    MaximalMarginalRelevance.name: MaximalMarginalRelevance,
    XQuAD.name: XQuAD,
    PM2.name: PM2,
}
