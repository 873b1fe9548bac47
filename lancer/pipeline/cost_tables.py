"""What `lancer cost` found, for a person: by stage, by query, by engine, and against the wall clock of each session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Group
from rich.table import Table

from lancer.pipeline.cost import Cost, EngineCost
from lancer.pipeline.pricing import HOUR_S, Money
from lancer.pipeline.tables import plain_table, usd_amount

NO_PRICE: Final = "no price"
NOT_KNOWN: Final = "not known"


def render_cost(cost: Cost) -> Group:
    """For a console."""
    parts: list[Any] = [f"{cost.output}: {cost.status}, {cost.total.queries} of {cost.queries} queries in the ledger"]
    parts.append(_stage_table(cost))
    parts.append(_query_table(cost))
    if cost.engines:
        parts.append(_engine_table(cost.engines))
    if cost.sessions:
        parts.append(_session_table(cost))
    parts.extend(_notes(cost))
    return Group(*parts)


def _stage_table(cost: Cost) -> Table:
    table = plain_table(
        "stage",
        "queries",
        "calls",
        "pairs",
        "prompt tokens",
        "cached",
        "output",
        "device s",
        "USD",
        "paid already: calls",
        "tokens",
        "would have cost USD",
    )
    for stage, sums in [*cost.stages.items(), ("total", cost.total)]:
        cached = "-" if sums.cached_share is None else f"{sums.cached_share:.0%}"
        reused = usd(sums.reused_money, NOT_KNOWN) if sums.reused_calls else "-"
        counts = [_count(n) for n in (sums.queries, sums.calls, sums.pairs, sums.prompt_tokens)]
        paid = [_count(sums.reused_calls), _count(sums.reused_tokens), reused]
        table.add_row(
            stage, *counts, cached, _count(sums.output_tokens), f"{sums.device_s:,.1f}", usd(sums.money), *paid
        )
    per_1000 = cost.per_1000_queries
    counts = [_count(round(per_1000.counts[name])) for name in ("calls", "pairs", "prompt_tokens", "output_tokens")]
    seconds = f"{per_1000.counts['device_s']:,.1f}"
    table.add_row("per 1,000 queries", "", *counts[:3], "", counts[3], seconds, usd(per_1000.money), "", "", "")
    return table


def _query_table(cost: Cost) -> Table:
    table = plain_table("per query", "p50", "p95", "max")
    for name, of in cost.per_query.items():
        shown = [usd_amount(of[q]) if name == "usd" else f"{of[q]:,.1f}" for q in ("p50", "p95", "max") if of]
        table.add_row({"device_s": "device s", "usd": "USD"}.get(name, name), *shown)
    return table


def _engine_table(engines: Iterable[EngineCost]) -> Table:
    names = ("engine", "devices", "start-up s", "busy s", "idle s", "device hours", "USD", "shared by", "calls")
    table = plain_table(*names, "tokens")
    for engine in engines:
        use = engine.use
        seconds = [f"{s:,.1f}" for s in (use.startup_s, use.busy_s, use.idle_s)]
        table.add_row(
            use.name,
            f"{use.replicas} x {use.devices:g}",
            *seconds,
            f"{use.device_s / HOUR_S:,.4f}",
            usd(engine.money),
            engine.shared_by or "nothing",
            _count(use.calls),
            _count(use.tokens),
        )
    return table


def _session_table(cost: Cost) -> Table:
    table = plain_table(
        "session", "host", "status", "wall s", "engines held s", "x devices", "by engines' clocks", "difference"
    )
    for s in cost.sessions:
        table.add_row(
            str(s.session),
            s.host,
            s.status,
            f"{s.wall_s:,.1f}",
            f"{s.held_s:,.1f}" if s.devices else "-",
            f"{s.held_s * s.devices:,.1f}",
            f"{s.engine_s:,.1f}",
            _percent(s.difference),
        )
    wall = f"{sum(s.wall_s for s in cost.sessions):,.1f}"
    table.add_row(
        "total", "", "", wall, "", f"{cost.device_s:,.1f}", f"{cost.engine_s:,.1f}", _percent(cost.difference)
    )
    return table


def _notes(cost: Cost) -> Iterable[str]:
    without = sorted(cost.total.money.without)
    if without:
        yield f"note: `prices` has nothing for {', '.join(without)}"
    for engine in cost.engines:
        use, sums = engine.use, engine.sums
        if use.calls != sums.calls or use.tokens != sums.tokens:
            yield (
                f"note: {use.name} counted {use.calls:,} calls and {use.tokens:,} tokens, the ledger {sums.calls:,} "
                f"and {sums.tokens:,}: the rest is of work under way or killed, or of settings that have changed since"
            )


def usd(money: Money, unknown: str = NO_PRICE) -> str:
    """An amount for a person; never 0 for what has no price."""
    if money.known is None:
        return unknown
    return usd_amount(money.known) + (f" + {unknown}" if money.without else "")


def _count(number: int) -> str:
    return f"{number:,}" if number else "-"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
