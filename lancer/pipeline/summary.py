"""What a run did, for the closing table, `run.json` and `lancer.run`'s caller."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.table import Table

from lancer.engines.protocols import EngineClock
from lancer.pipeline.execute import StageReport

WIDTH = 200  # of tables in files and pipes


@dataclass
class StageTotal:
    """A stage over all shards. `seconds` adds up the workers' wall time, which overlaps."""

    stage: str
    queries: int = 0
    reused_queries: int = 0
    calls: int = 0
    pairs: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    failures: int = 0
    failed_queries: int = 0

    def add(self, report: StageReport) -> None:
        """Counts one shard in; a reused one adds its counts, but no time."""
        self.queries += report.queries
        self.reused_queries += report.queries if report.reused else 0
        self.seconds += 0.0 if report.reused else report.seconds
        for name in ("calls", "pairs", "prompt_tokens", "cached_tokens", "output_tokens", "failures", "failed_queries"):
            setattr(self, name, getattr(self, name) + getattr(report, name))

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

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def count(self, reports: Iterable[StageReport]) -> None:
        """Adds the reports of a finished shard."""
        totals = {t.stage: t for t in self.stages}
        for report in reports:
            if report.stage not in totals:
                totals[report.stage] = StageTotal(report.stage)
                self.stages.append(totals[report.stage])
            totals[report.stage].add(report)


def render(result: RunResult) -> Group:
    """The closing summary for a console."""
    parts: list[Any] = [_stage_table(result)]
    if result.engines:
        parts.append(_engine_table(result))
    if result.measures:
        parts.append(_measure_table(result))
    parts.extend(f"note: {note}" for note in result.notes)
    parts.append(f"{result.queries} queries in {result.seconds:.1f} s; files are in {result.output}")
    return Group(*parts)


def show(result: RunResult, console: Console | None = None) -> None:
    """Prints the closing summary."""
    (console or wide_console()).print(render(result))


def _stage_table(result: RunResult) -> Table:
    names = (
        "stage",
        "queries",
        "reused",
        "calls",
        "pairs",
        "prompt tokens",
        "cached",
        "output",
        "seconds",
        "queries/s",
        "failures",
    )
    table = _table(names)
    for t in result.stages:
        rate = t.queries_per_s
        counts = (t.queries, t.reused_queries, t.calls, t.pairs, t.prompt_tokens, t.cached_tokens, t.output_tokens)
        shown = [f"{c:,}" if c else "-" for c in counts]
        table.add_row(t.stage, *shown, f"{t.seconds:.1f}", f"{rate:.1f}" if rate else "-", str(t.failures or "-"))
    return table


def _engine_table(result: RunResult) -> Table:
    table = _table(("engine", "start-up s", "busy s", "calls", "tokens"))
    for name, clocks in result.engines.items():
        for i, clock in enumerate(clocks):
            label = name if len(clocks) == 1 else f"{name}[{i}]"
            table.add_row(
                label, f"{clock.startup_s:.1f}", f"{clock.busy_s:.1f}", f"{clock.calls:,}", f"{clock.tokens:,}"
            )
    return table


def _measure_table(result: RunResult) -> Table:
    names = list(dict.fromkeys(name for values in result.measures.values() for name in values))
    table = _table(("ranking", *names))
    for file, values in result.measures.items():
        table.add_row(file, *(f"{values[name]:.4f}" if name in values else "-" for name in names))
    return table


def _table(names: Iterable[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(names):
        table.add_column(name, justify="left" if i == 0 else "right", no_wrap=True)
    return table


def wide_console() -> Console:
    """Standard output; where that is no terminal its tables are not cut to 80 columns."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)
