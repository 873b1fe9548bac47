"""What an earlier run tells about one that is planned: how fast engines are, how much a model writes. No Ray."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from lancer import schema
from lancer.engines.table import EngineConfig
from lancer.errors import InputError
from lancer.pipeline.cost import Cost, cost_of, read_ledger
from lancer.pipeline.folder import RunFolder, open_run
from lancer.pipeline.forecast import Rate, Rates
from lancer.pipeline.plan import Plan
from lancer.pipeline.pricing import EngineUse
from lancer.stages.records import LedgerRecord
from lancer.storage import Storage

_PLACE: Final = frozenset({"replicas", "num_cpus"})  # fields of an engine that say where, not how fast one replica is
TYPICAL: Final = 500  # sub-questions that are looked at


@dataclass(frozen=True)
class Habit:
    """How a stage's calls turn out, in relation to those of its first attempt."""

    calls: float  # of all attempts, per first call
    prompt_tokens: float  # of all attempts, per token of the first prompt
    cached_again: float  # tokens that further attempts found cached, per token of the first prompt
    output_tokens: float  # per call

    def of(self, record: LedgerRecord) -> LedgerRecord:
        """A first attempt's record, with what follows it."""
        cached = record.cached_tokens + record.prompt_tokens * self.cached_again
        return replace(
            record,
            calls=round(record.calls * self.calls),
            pairs=round(record.pairs * self.calls),
            prompt_tokens=round(record.prompt_tokens * self.prompt_tokens),
            cached_tokens=round(cached),
            output_tokens=round(record.calls * self.calls * self.output_tokens),
        )


@dataclass(frozen=True)
class Experience:
    """`habits` by stage, of those with the same settings and engine there; `notes` are for a person."""

    rates: Rates
    habits: dict[str, Habit]
    sub_questions: tuple[str, ...]
    notes: tuple[str, ...]

    def records(self, rehearsed: Sequence[LedgerRecord]) -> list[LedgerRecord]:
        """The records of a rehearsal, as they would have been there."""
        known = [r for r in rehearsed if r.attempt == 1 or r.stage not in self.habits]
        return [self.habits[r.stage].of(r) if r.stage in self.habits else r for r in known]


def read_experience(root: str, plan: Plan, storage: Storage | None = None) -> Experience:
    """Of a run folder, for a plan. InputError: no run is there, or its engines have done nothing yet."""
    run = open_run(root, storage)
    cost = cost_of(run)
    notes: list[str] = []
    engines: dict[str, Rate] = {}
    for engine in cost.engines:
        config = plan.config.engines.get(engine.use.name)
        before = run.config.engines.get(engine.use.name)
        if config is None or before is None or not engine.use.calls:
            continue
        differences = _differences(before, config)
        if {"kind", "model", "num_gpus"} & set(differences):
            notes.append(
                f"{engine.use.name}: {root} had another engine ({', '.join(differences)}), its rate is unknown"
            )
            continue
        if differences:
            notes.append(f"{engine.use.name}: its rate is from {root}, where it differed in {', '.join(differences)}")
        engines[engine.use.name] = _rate(engine.use, sum(bool(s.result.get("engines")) for s in run.sessions))
    if not any(engine.use.calls for engine in cost.engines):
        raise InputError("its engines have done nothing yet", file=root)
    habits = _habits(run, plan)
    for stage, habit in habits.items():
        notes.append(
            f"{stage}: {habit.calls:.2f} calls for each first one and {habit.output_tokens:.1f} output tokens "
            f"per call, as in {root}"
        )
    rates = Rates(root, engines, _stretch(cost))
    return Experience(rates, habits, _sub_questions(run) if "decompose" in habits else (), tuple(notes))


def _differences(one: EngineConfig, other: EngineConfig) -> list[str]:
    before, now = one.model_dump(), other.model_dump()
    return sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k) and k not in _PLACE)


def _rate(use: EngineUse, sessions: int) -> Rate:
    """Per replica; where no token is counted, by calls."""
    computed = use.tokens - use.cached_tokens
    unit, amount = ("tokens", computed) if computed else ("calls", use.calls)
    return Rate(unit, use.busy_s / amount, use.startup_s / max(1, use.replicas) / max(1, sessions))


def _stretch(cost: Cost) -> float:
    """See `Rates`."""
    starts = [e.use.startup_s / e.use.replicas for e in cost.engines if e.use.replicas]
    busy = [e.use.busy_s / e.use.replicas for e in cost.engines if e.use.replicas]
    worked = sum(s.held_s for s in cost.sessions if s.devices) - max(starts, default=0.0)
    longest = max(busy, default=0.0)
    return max(1.0, worked / longest) if longest else 1.0


def _habits(run: RunFolder, plan: Plan) -> dict[str, Habit]:
    before = {stage["name"]: stage.get("identity", {}) for stage in run.record["stages"]}
    same = {
        stage.name
        for stage in plan.stages
        if stage.stage.engines
        and all(before.get(stage.name, {}).get(key) == stage.identity[key] for key in ("settings", "engines"))
    }
    by_stage: dict[str, list[LedgerRecord]] = {}
    for record in read_ledger(run):
        if record.stage in same:
            by_stage.setdefault(record.stage, []).append(record)
    return {stage: habit for stage, records in by_stage.items() if (habit := _habit(records)) is not None}


def _habit(records: Sequence[LedgerRecord]) -> Habit | None:
    """With answers that came from earlier calls; None where no token was written."""
    first = [r for r in records if r.attempt == 1]

    def added(of: Sequence[LedgerRecord], value: Callable[[LedgerRecord], int]) -> int:
        return sum(value(r) for r in of)

    def calls(r: LedgerRecord) -> int:
        return r.calls + r.reused_calls

    def prompt(r: LedgerRecord) -> int:
        return r.prompt_tokens + r.reused_tokens - r.reused_output_tokens

    def cached(r: LedgerRecord) -> int:
        return r.cached_tokens + r.reused_cached_tokens

    def output(r: LedgerRecord) -> int:
        return r.output_tokens + r.reused_output_tokens

    if not added(first, calls) or not added(first, prompt) or not added(records, output):
        return None
    return Habit(
        calls=added(records, calls) / added(first, calls),
        prompt_tokens=added(records, prompt) / added(first, prompt),
        cached_again=(added(records, cached) - added(first, cached)) / added(first, prompt),
        output_tokens=added(records, output) / added(records, calls),
    )


def _sub_questions(run: RunFolder) -> tuple[str, ...]:
    """Some of those that were made there, in the order of its files."""
    found: dict[str, Any] = {}
    for entry in sorted(run.files("coverage.parquet").values(), key=lambda e: e.uri):
        table = run.store.read_table(entry.uri, schema.COVERAGE_SCHEMA)
        found.update(dict.fromkeys(table["sub_question"].unique().to_pylist()))
        if len(found) >= TYPICAL:
            break
    return tuple(found)[:TYPICAL]
