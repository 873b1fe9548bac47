"""`lancer plan --estimate`: what a run will ask, cost and take, against its budget. No Ray."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from lancer.config import LimitsConfig
from lancer.pipeline.budget import exceeded
from lancer.pipeline.cost import uses_of
from lancer.pipeline.experience import read_experience
from lancer.pipeline.forecast import Forecast, Sample, forecast
from lancer.pipeline.foretold import check_folder, identity, keep
from lancer.pipeline.plan import Plan
from lancer.pipeline.rehearse import rehearse
from lancer.pipeline.resume import input_record
from lancer.pipeline.store import RunStore
from lancer.storage import Storage

SAMPLE: Final = 8  # queries; some seconds at 100 candidates and 10 sub-questions


def estimate_plan(plan: Plan, storage: Storage, *, sample: int = SAMPLE, rates: str | None = None) -> Forecast:
    """`rates` is the folder of an earlier run with these engines: how fast they were, how much was written there.

    Errors as those of `rehearse` and `read_experience`.
    """
    known = None if rates is None else read_experience(rates, plan, storage)
    rehearsed = rehearse(plan, storage, sample=sample, sub_questions=known.sub_questions if known else ())
    records = known.records(rehearsed.records) if known else rehearsed.records
    replicas = {name: engine.replicas for name, engine in plan.config.engines.items()}
    uses = uses_of(plan.config, plan.engines, [])
    uses = {name: replace(use, replicas=replicas[name]) for name, use in uses.items()}
    same = _names(plan, uses)
    records = [replace(r, engine=same.get(r.engine, "")) for r in records]
    assumptions = list(rehearsed.assumptions)
    assumptions += [
        f"{stage}: {n} calls of the sample are too long or refused" for stage, n in rehearsed.refused.items()
    ]
    assumptions += known.notes if known else ["rates of engines: none given (--rates), so device hours are not known"]
    of_plan = identity((s.fingerprint for s in plan.stages), input_record(plan)["requests_digest"])
    found = Sample(rehearsed.queries, rehearsed.total, records)
    return forecast(found, uses, known.rates if known else None, plan=of_plan, assumptions=assumptions)


def estimate_run(plan: Plan, *, sample: int = SAMPLE, rates: str | None = None) -> Forecast:
    """The same, kept in the run folder."""
    storage = Storage(plan.config.storage)
    store = RunStore(storage, plan.config.output)
    check_folder(store)
    found = estimate_plan(plan, storage, sample=sample, rates=rates)
    keep(found, store)
    return found


def _names(plan: Plan, uses: dict[str, Any]) -> dict[str, str]:
    """Engine → the name under which it is reckoned: equal configs are one."""
    by_config = {plan.config.engines[name].model_dump_json(): name for name in uses}
    return {name: by_config[plan.config.engines[name].model_dump_json()] for name in plan.engines}


def over_budget(limits: LimitsConfig, found: Forecast) -> list[str]:
    """The limits that the forecast reaches."""
    usd, hours = found.total.usd, found.duration_h
    return exceeded(limits, usd.value if usd else None, hours.value if hours else None)


def budget_lines(limits: LimitsConfig, found: Forecast) -> list[str]:
    """How the forecast stands to each limit that is set, for a person."""
    lines = []
    for name, limit, value in (
        ("limits.usd", limits.usd, found.total.usd),
        ("limits.hours", limits.hours, found.duration_h),
    ):
        if limit is None:
            continue
        if value is None:
            lines.append(f"{name} {limit:g}: what the run takes of it is not known")
        elif value.value >= limit:
            lines.append(f"{name} {limit:g}: not enough")
        elif value.high is None or value.high >= limit or (name == "limits.usd" and found.without_price):
            lines.append(f"{name} {limit:g}: may not be enough")
        else:
            lines.append(f"{name} {limit:g}: enough")
    return lines
