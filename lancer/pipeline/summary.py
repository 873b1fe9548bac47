"""What a run did, for the closing table, `run.json` and `lancer.run`'s caller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.table import Table

from lancer.engines.protocols import EngineClock
from lancer.errors import DamagedError
from lancer.pipeline.estimating_tables import comparison_table
from lancer.pipeline.execute import SUMS, StageReport, report_of
from lancer.pipeline.foretold import Compared
from lancer.pipeline.plan import Plan, Shard
from lancer.pipeline.resume import Work, with_failures
from lancer.pipeline.store import RunStore, in_order
from lancer.pipeline.tables import plain_table

WIDTH = 200  # of tables in files and pipes


@dataclass
class StageTotal:
    """A stage over all shards. `seconds` adds up the workers' wall time, which overlaps.

    `reused_queries` had their part already, and their calls are not counted again; `reused_calls` were answered from
    journals.
    """

    stage: str
    queries: int = 0
    reused_queries: int = 0
    calls: int = 0
    reused_calls: int = 0
    pairs: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    failures: dict[str, int] = field(default_factory=dict)  # records by reason
    failed_queries: int = 0
    cells: int = 0
    failed_cells: int = 0
    cut_documents: int = 0  # (query, candidate) pairs of which the judge saw the beginning only
    cut_inputs: int = 0  # texts or pairs that were longer than their model takes, of what was computed now
    counted_queries: int = 0  # of which failures and cells are known: not of shards that were finished without failures

    def add(self, report: StageReport) -> None:
        """Counts one shard in."""
        self.queries += report.queries
        self.counted_queries += report.queries
        self.failures = dict(Counter(self.failures) + Counter(report.failures))
        for name in ("failed_queries", "cells", "failed_cells", "cut_documents"):
            setattr(self, name, getattr(self, name) + getattr(report, name))
        if report.reused:
            self.reused_queries += report.queries
            return
        self.seconds += report.seconds
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(report, name))

    @property
    def cached_share(self) -> float | None:
        """Of the prompt tokens."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def queries_per_s(self) -> float | None:
        """Computed queries per second of worker time."""
        computed = self.queries - self.reused_queries
        return computed / self.seconds if computed and self.seconds else None


@dataclass
class RunResult:
    """`stages` in order; `engines`: clocks of each replica; `measures`: file name → measure → mean over queries."""

    output: str
    queries: int
    seconds: float = 0.0
    stages: list[StageTotal] = field(default_factory=list)
    engines: dict[str, list[EngineClock]] = field(default_factory=dict)
    measures: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    foretold: list[Compared] = field(default_factory=list)  # of a finished run with a forecast: beside what came of it

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def count_reused(self, plan: Plan, work: Work, store: RunStore) -> None:
        """Finished shards: every stage is there; what it cost is in the ledger.

        Only parts of shards with failures are read.
        """
        todo = {s.id for s in work.todo}
        finished = [s for s in plan.shards if s.id not in todo]
        failed = with_failures(finished, work.finals, store)
        queries = sum(s.table.num_rows for s in finished) - sum(s.table.num_rows for s in failed)
        for stage in plan.stages:
            self.stages.append(StageTotal(stage.name, queries=queries, reused_queries=queries))
        for reports in in_order(lambda s: _reports(plan, s, work, store), failed):
            self.count(reports)

    def count(self, reports: Iterable[StageReport]) -> None:
        """Adds the reports of a finished shard."""
        totals = {t.stage: t for t in self.stages}
        for report in reports:
            if report.stage not in totals:
                totals[report.stage] = StageTotal(report.stage)
                self.stages.append(totals[report.stage])
            totals[report.stage].add(report)


def _reports(plan: Plan, shard: Shard, work: Work, store: RunStore) -> list[StageReport]:
    reports = []
    for stage in plan.stages:
        try:
            part = store.read_part(work.parts[stage.name, shard.id], stage)
        except DamagedError:
            reports.append(StageReport(stage.name, shard.table.num_rows, reused=True))
        else:
            reports.append(report_of(stage, part, reused=True))
    return reports


def render(result: RunResult) -> Group:
    """The closing summary for a console."""
    parts: list[Any] = [_stage_table(result)]
    if result.engines:
        parts.append(_engine_table(result))
    if result.foretold:
        parts.append(comparison_table(result.foretold))
    if result.measures:
        parts.append(_measure_table(result))
    parts.extend(f"note: {note}" for note in [*result.notes, *_cut(result)])
    parts.append(f"{result.queries} queries in {result.seconds:.1f} s; files are in {result.output}")
    return Group(*parts)


def _cut(result: RunResult) -> Iterator[str]:
    """A note per stage that left something of documents out."""
    for total in result.stages:
        if total.cut_documents:
            yield (
                f"{total.stage}: {total.cut_documents:,} documents did not fit and were cut, so far as their shards "
                "were looked at; coverage.parquet says by how much"
            )
        if total.cut_inputs:
            yield (
                f"{total.stage}: {total.cut_inputs:,} inputs were longer than the model takes and were cut; "
                "ledger.parquet says of which queries"
            )


def show(result: RunResult, console: Console | None = None) -> None:
    """Prints the closing summary."""
    (console or wide_console()).print(render(result))


def _stage_table(result: RunResult) -> Table:
    names = (
        "stage",
        "queries",
        "reused",
        "calls",
        "from journal",
        "pairs",
        "prompt tokens",
        "cached",
        "output",
        "seconds",
        "queries/s",
        "failures",
    )
    table = plain_table(*names)
    for t in result.stages:
        rate = t.queries_per_s
        counts = (
            t.queries,
            t.reused_queries,
            t.calls,
            t.reused_calls,
            t.pairs,
            t.prompt_tokens,
            t.cached_tokens,
            t.output_tokens,
        )
        shown = [f"{c:,}" if c else "-" for c in counts]
        if t.cached_share:
            shown[-2] += f" ({t.cached_share:.0%})"
        table.add_row(
            t.stage, *shown, f"{t.seconds:.1f}", f"{rate:.1f}" if rate else "-", str(sum(t.failures.values()) or "-")
        )
    return table


def _engine_table(result: RunResult) -> Table:
    table = plain_table("engine", "start-up s", "busy s", "idle s", "calls", "tokens")
    for name, clocks in result.engines.items():
        for i, clock in enumerate(clocks):
            label = name if len(clocks) == 1 else f"{name}[{i}]"
            seconds = [f"{s:.1f}" for s in (clock.startup_s, clock.busy_s, clock.idle_s)]
            table.add_row(label, *seconds, f"{clock.calls:,}", f"{clock.tokens:,}")
    return table


def _measure_table(result: RunResult) -> Table:
    names = list(dict.fromkeys(name for values in result.measures.values() for name in values))
    table = plain_table("ranking", *names)
    for file, values in result.measures.items():
        table.add_row(file, *(f"{values[name]:.4f}" if name in values else "-" for name in names))
    return table


def wide_console() -> Console:
    """Standard output, text as it is; where that is no terminal its tables are not cut to 80 columns."""
    console = _console(None)
    return console if console.is_terminal else _console(WIDTH)


def _console(width: int | None) -> Console:
    # No markup and no emoji: paths and ids may hold [brackets] and :colons:.
    return Console(highlight=False, markup=False, emoji=False, width=width)
