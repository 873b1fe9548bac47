"""What `lancer status` found, for a person."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group
from rich.table import Table

from lancer.pipeline.progress import duration
from lancer.pipeline.status import Holder, Rate, Spend, StageStatus, Status
from lancer.pipeline.tables import plain_table, usd_amount


def render_status(status: Status) -> Group:
    """For a console."""
    parts: list[Any] = [f"{status.output}: {status.status}, {_progress(status)}"]
    if status.session is not None:
        parts.append(_holder(status.session))
    if status.status not in ("running", "finished"):
        parts.append("what was finished is kept; the same `lancer run` goes on from there")
    parts.append(_stage_table(status.stages))
    parts.append(_spend(status))
    if status.failures:
        parts.append("last failures:")
    parts.extend(f"  {f.written}  {f.stage}  {f.query_id}  {f.reason}: {f.detail}" for f in status.failures)
    return Group(*parts)


def _progress(status: Status) -> str:
    parts = [f"{status.finished:,} of {status.queries:,} queries done"]
    if status.rate.recent is not None:
        parts.append(f"{status.rate.recent:.1f}/min lately")
    if status.rate.overall is not None:
        parts.append(f"{status.rate.overall:.1f}/min overall in this session")
    if status.status == "running":
        parts.append(f"ETA {'--' if status.eta_s is None else duration(status.eta_s)}")
    return ", ".join(parts)


def _holder(holder: Holder) -> str:
    state = "alive" if holder.alive else holder.status
    return (
        f"session {holder.session}: process {holder.pid} on {holder.host}, since {holder.started}, {state}, "
        f"last heartbeat {duration(holder.heartbeat_age_s)} ago"
    )


def _stage_table(stages: Iterable[StageStatus]) -> Table:
    table = plain_table("stage", "done", "running", "failed", "to do", "per minute lately", "overall")
    for s in stages:
        counts = [f"{n:,}" if n else "-" for n in (s.done, s.running, s.failed, s.to_do)]
        table.add_row(s.stage, *counts, *_rates(s.rate))
    return table


def _rates(rate: Rate) -> list[str]:
    return ["-" if value is None else f"{value:.1f}" for value in (rate.recent, rate.overall)]


def _spend(status: Status) -> str:
    if not status.spend:
        return "no engine has been used"
    engines = ", ".join(_of_engine(s) for s in status.spend)
    money = status.spent
    without = f"; `prices` has nothing for {', '.join(sorted(money.without))}" if money.without else ""
    if money.known is None:
        return f"spent so far: {engines}{without}"
    return f"spent so far: USD {usd_amount(money.known)} ({engines}){without}"


def _of_engine(spend: Spend) -> str:
    hours = f"{spend.engine} {spend.device_hours:.4f} device hours"
    return hours if spend.money.known is None else f"{hours}, USD {usd_amount(spend.money.known)}"
