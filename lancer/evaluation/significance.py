"""Is one run better than another? Values of one measure, paired by query id, after an evaluation.

The randomisation test and the t-test are compared by Smucker, Allan and Carterette (CIKM 2007); corrections for several
runs against one baseline: Holm (1979) and Benjamini and Hochberg (1995). All random numbers come from a seed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from lancer.errors import InputError, UsageError, nearest

EXACT_QUERIES: Final = 16  # up to here all 2^n sign assignments are counted, above it ROUNDS random ones
ROUNDS: Final = 100_000
RESAMPLES: Final = 10_000
LEVEL: Final = 0.05
_CHUNK: Final = 4_000_000  # random signs or indices held at a time: 32 MB

PerQuery = Mapping[str, float]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One run against the baseline in one measure. `difference` and `by_query` are run minus baseline."""

    difference: float
    by_query: dict[str, float]
    p: float
    p_corrected: float  # over the runs that are compared with the same baseline in the same measure
    significant: bool  # p_corrected below .05

    @property
    def better(self) -> int:
        """Queries on which the run is better."""
        return sum(value > 0 for value in self.by_query.values())

    @property
    def worse(self) -> int:
        """Queries on which the run is worse."""
        return sum(value < 0 for value in self.by_query.values())


def compare(
    runs: Mapping[str, PerQuery],
    baseline: PerQuery,
    *,
    test: str = "randomisation",
    correction: str = "holm",
    seed: int = 0,
) -> dict[str, Comparison]:
    """Each of `runs` (without the baseline) against the baseline, in one measure.

    The correction counts these runs only: the baseline is no hypothesis of its own. UsageError: unknown test or
    correction. InputError: a run and the baseline have values for different queries.
    """
    if test not in TESTS:
        raise UsageError(f"test {test!r} does not exist{nearest(test, TESTS)}")
    if correction not in CORRECTIONS:
        raise UsageError(f"correction {correction!r} does not exist{nearest(correction, CORRECTIONS)}")
    by_query = {name: differences(values, baseline) for name, values in runs.items()}
    ps = [TESTS[test](np.array(list(row.values())), seed) for row in by_query.values()]
    corrected = CORRECTIONS[correction](ps)
    return {
        name: Comparison(
            difference=math.fsum(row.values()) / len(row),
            by_query=row,
            p=p,
            p_corrected=p_corrected,
            significant=p_corrected < LEVEL,
        )
        for (name, row), p, p_corrected in zip(by_query.items(), ps, corrected, strict=True)
    }


def differences(run: PerQuery, baseline: PerQuery) -> dict[str, float]:
    """Query id -> run minus baseline. InputError: no query, or queries that only one of the two has."""
    unpaired = sorted(run.keys() ^ baseline.keys())
    if unpaired or not baseline:
        reason = f"{len(unpaired)} are in one only ({', '.join(unpaired[:5])})" if unpaired else "there are none"
        raise InputError(f"the two runs were not evaluated on the same queries: {reason}")
    return {query_id: run[query_id] - value for query_id, value in baseline.items()}


def randomisation(differences: Floats, seed: int = 0) -> float:
    """Two-sided p of the paired randomisation test on the mean difference; shape (queries,).

    Queries without a difference cannot change the mean and are left out. Exact up to 16 others: the share of all sign
    assignments with a mean at least as far from 0. Above: (1 + hits) / (1 + 100,000 random assignments). 1 for
    identical runs.
    """
    values = differences[differences != 0]
    if not len(values):
        return 1.0
    observed = abs(float(values.sum()))
    least = observed - 1e-12 * float(np.abs(values).sum())  # sums in another order differ in their last bits
    if len(values) <= EXACT_QUERIES:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(values))))
        return float(np.mean(np.abs(signs @ values) >= least))
    generator = np.random.default_rng(seed)
    hits, rows = 0, max(1, _CHUNK // len(values))
    for start in range(0, ROUNDS, rows):
        flipped = generator.integers(0, 2, size=(min(rows, ROUNDS - start), len(values)), dtype=np.int8)
        hits += int(np.count_nonzero(np.abs(values.sum() - 2 * (flipped @ values)) >= least))
    return (1 + hits) / (1 + ROUNDS)


def t_test(differences: Floats, seed: int = 0) -> float:
    """Two-sided p of the paired t-test; shape (queries,). 1 for identical runs and for a single query."""
    from scipy import stats

    if len(differences) < 2 or not differences.any():
        return 1.0
    if np.ptp(differences) == 0:
        return 0.0  # every query differs by the same amount: t is infinite
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment: controls the chance of a single false claim."""
    order = sorted(range(len(ps)), key=lambda place: ps[place])
    adjusted, highest = [0.0] * len(ps), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, ps[place] * (len(ps) - rank)))
        adjusted[place] = highest
    return adjusted


def benjamini_hochberg(ps: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's step-up adjustment: controls the expected share of false claims."""
    order = sorted(range(len(ps)), key=lambda place: ps[place], reverse=True)
    adjusted, lowest = [0.0] * len(ps), 1.0
    for rank, place in enumerate(order):
        lowest = min(lowest, ps[place] * len(ps) / (len(ps) - rank))
        adjusted[place] = lowest
    return adjusted


def confidence_interval(values: PerQuery, *, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over queries, from 10,000 resamples of the queries."""
    numbers = np.array(list(values.values()), dtype=np.float64)
    generator = np.random.default_rng(seed)
    means, rows = [], max(1, _CHUNK // len(numbers))
    for start in range(0, RESAMPLES, rows):
        chosen = generator.integers(0, len(numbers), size=(min(rows, RESAMPLES - start), len(numbers)))
        means.append(numbers[chosen].mean(axis=1))
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


TESTS: Final[dict[str, Callable[[Floats, int], float]]] = {"randomisation": randomisation, "t": t_test}
CORRECTIONS: Final[dict[str, Callable[[Sequence[float]], list[float]]]] = {
    "holm": holm,
    "bh": benjamini_hochberg,
}
