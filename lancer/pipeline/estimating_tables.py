"""A forecast for a person, and a forecast beside what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Group
from rich.table import Table

from lancer.config import LimitsConfig
from lancer.pipeline.estimating import budget_lines
from lancer.pipeline.forecast import CONFIDENCE, Forecast, Range
from lancer.pipeline.foretold import Compared
from lancer.pipeline.tables import plain_table, usd_amount

NOT_KNOWN: Final = "not known"


def render_forecast(found: Forecast, limits: LimitsConfig) -> Group:
    """For a console."""
    head = f"forecast for {found.queries:,} queries, from {found.sampled:,} of them"
    table = plain_table("stage", "engine", "calls", "pairs", "prompt tokens", "cached", "output", "device hours", "USD")
    for stage in [*(s for s in found.stages if s.engine), found.total]:
        counts = [_count(stage.counts[name]) for name in ("calls", "pairs", "prompt_tokens")]
        shares = [_percent(stage.cached_share), _count(stage.counts["output_tokens"])]
        money = [_range(stage.device_hours, "{:,.3f}".format), _range(stage.usd, usd_amount)]
        table.add_row(stage.stage, stage.engine or "-", *counts, *shares, *money)
    lines = [f"duration: {_range(found.duration_h, '{:,.3f} hours'.format)}"]
    if found.total.usd is not None and found.without_price:
        lines.append(f"not in USD, or not all of it: {', '.join(found.without_price)}")
    lines.append(f"± is the {CONFIDENCE:.0%} interval of drawing these queries, not of the assumptions:")
    lines += [f"  {assumption}" for assumption in found.assumptions]
    return Group(head, table, *lines, *budget_lines(limits, found))


def comparison_table(rows: Sequence[Compared]) -> Table:
    """Predicted | actual, for each number that both or one of them have."""
    table = plain_table(
        "predicted | actual", "calls", "prompt tokens", "cached", "output", "device hours", "USD", "hours"
    )
    shown: dict[str, Callable[[float], str]] = {
        "calls": "{:,.0f}".format,
        "prompt_tokens": "{:,.0f}".format,
        "cached_share": "{:.0%}".format,
        "output_tokens": "{:,.0f}".format,
        "device_hours": "{:,.3f}".format,
        "usd": usd_amount,
        "hours": "{:,.3f}".format,
    }
    for row in rows:
        cells = []
        for name, form in shown.items():
            pair = (row.predicted.get(name), row.actual.get(name))
            cells.append("-" if pair == (None, None) else " | ".join("-" if v is None else form(v) for v in pair))
        table.add_row(row.stage, *cells)
    return table


def _count(value: Range) -> str:
    return _range(value, "{:,.0f}".format) if value.value else "-"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _range(value: Range | None, form: Callable[[float], str]) -> str:
    """`12.3 ±4%`; without ± where it is exact or where nothing tells how far off it may be."""
    if value is None:
        return NOT_KNOWN
    width = value.half_width
    return form(value.value) + (f" ±{width:.1%}" if width else "")
