"""When too much has failed for the rest to be worth its price."""

from __future__ import annotations

from collections import Counter

from lancer.config import LimitsConfig
from lancer.errors import LimitError
from lancer.pipeline.summary import RunResult


def check_limits(limits: LimitsConfig, result: RunResult) -> None:
    """LimitError with the counts by reason; shares are of all queries, and of the cells of the stages so far."""
    reasons: Counter[str] = Counter()
    for total in result.stages:
        reasons.update(total.failures)
        if total.failed_queries > limits.failed_queries * result.queries:
            raise LimitError(
                _message(
                    f"stage {total.stage!r}: {total.failed_queries} of {result.queries} queries failed",
                    "failed_queries",
                    limits.failed_queries,
                    reasons,
                )
            )
        # of a tenth of the queries at least, so that the first bad shard does not end a long run
        # those of queries that were not counted are as many each
        cells = total.cells * total.queries / (total.counted_queries or total.queries or 1)
        if 10 * total.queries >= result.queries and total.failed_cells > limits.failed_cells * cells:
            raise LimitError(
                _message(
                    f"stage {total.stage!r}: {total.failed_cells:,} of {cells:,.0f} cells failed",
                    "failed_cells",
                    limits.failed_cells,
                    reasons,
                )
            )


def _message(what: str, name: str, limit: float, reasons: Counter[str]) -> str:
    counts = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
    return (
        f"{what}, more than limits.{name} {limit:g} ({counts}); what was finished is kept; "
        f"see failures in the run folder, then --retry-failed, or raise the limit"
    )
