"""Several evaluations side by side: intervals, differences to a baseline, significance. What tables are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from lancer.errors import UsageError, nearest
from lancer.evaluation.measures import Evaluation
from lancer.evaluation.significance import Comparison, compare, confidence_interval

SUMMED: Final = frozenset({"NumQ", "NumRel", "NumRet"})  # ir_measures adds these up
DEFAULT_TEST: Final = "randomisation"
DEFAULT_CORRECTION: Final = "holm"


@dataclass(frozen=True, kw_only=True)
class Results:
    """The evaluations of several runs on the same qrels; `test` and `correction` say how they were compared.

    `intervals` and `comparisons`: measure name -> run name. `intervals` are 95 % bootstrap intervals of the mean;
    `comparisons` has every run but the baseline, and is empty without one. Where an evaluation has the sum over queries
    (NumRet ...), both are scaled to it.
    """

    evaluations: dict[str, Evaluation]
    intervals: dict[str, dict[str, tuple[float, float]]]
    comparisons: dict[str, dict[str, Comparison]]
    baseline: str | None
    test: str
    correction: str

    @property
    def measures(self) -> list[str]:
        """The measure names, in the order asked for."""
        return list(next(iter(self.evaluations.values())).mean)

    @property
    def queries(self) -> list[str]:
        """All query ids that some measure has a value for, in their order."""
        rows = (row for evaluation in self.evaluations.values() for row in evaluation.per_query.values())
        return list(dict.fromkeys(query_id for row in rows for query_id in row))


def collect(
    evaluations: Mapping[str, Evaluation],
    *,
    baseline: str | None = None,
    test: str | None = None,
    correction: str | None = None,
    seed: int = 0,
) -> Results:
    """Compares the runs, keyed by name, with the one called `baseline`.

    UsageError: no such baseline, a baseline alone, a test or correction that does not exist or is asked for without a
    baseline. InputError: runs that were evaluated on different queries.
    """
    if baseline is None and (test is not None or correction is not None):
        raise UsageError("a test and a correction need a baseline to compare with")
    if baseline is not None and baseline not in evaluations:
        raise UsageError(f"baseline {baseline!r} is none of the runs{nearest(baseline, evaluations)}")
    if baseline is not None and len(evaluations) == 1:
        raise UsageError(f"there is no run to compare with the baseline {baseline!r}")
    test, correction = test or DEFAULT_TEST, correction or DEFAULT_CORRECTION
    intervals: dict[str, dict[str, tuple[float, float]]] = {}
    comparisons: dict[str, dict[str, Comparison]] = {}
    for measure in next(iter(evaluations.values())).mean:
        rows = {name: evaluation.per_query[measure] for name, evaluation in evaluations.items()}
        scale = len(rows[next(iter(rows))]) if measure.split("(")[0] in SUMMED else 1
        intervals[measure] = {}
        for name, row in rows.items():
            low, high = confidence_interval(row, seed=seed)
            intervals[measure][name] = (low * scale, high * scale)
        if baseline is not None:
            others = {name: row for name, row in rows.items() if name != baseline}
            compared = compare(others, rows[baseline], test=test, correction=correction, seed=seed)
            comparisons[measure] = {
                name: replace(comparison, difference=comparison.difference * scale)
                for name, comparison in compared.items()
            }
    return Results(
        evaluations=dict(evaluations),
        intervals=intervals,
        comparisons=comparisons,
        baseline=baseline,
        test=test,
        correction=correction,
    )
