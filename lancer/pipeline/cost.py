"""`lancer cost`: what a run has cost, from its ledger and the clocks of its engines over all sessions. No Ray.

The ledger is of the results as they are now. Seconds and tokens of engines are of everything that sessions did, also
for settings that have changed since: the seconds are shared among the records of now, tokens of no record have a row of
their own, and the total is what was spent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from pydantic import ValidationError

from lancer import schema
from lancer.config import Config, PriceConfig
from lancer.engines.protocols import EngineClock
from lancer.errors import OutputError
from lancer.pipeline.folder import RunFolder, Session, open_run, read_all, read_list
from lancer.pipeline.pricing import (
    HOUR_S,
    EngineUse,
    Money,
    PerThousand,
    Priced,
    Sums,
    Terms,
    Unit,
    add_up,
    by_engine,
    by_query,
    by_stage,
    per_thousand,
    price,
    spread,
    unit_of,
)
from lancer.stages.records import LedgerRecord
from lancer.storage import Storage, StorageConfig

NO_STAGE: Final = "(no stage)"  # engines that were held without a call in the ledger
# Tokens that are paid for and in no record of now: of calls under way or killed, answered from the journal since, or of
# settings that have changed.
NOT_IN_LEDGER: Final = "(not in the ledger)"


@dataclass(frozen=True)
class EngineCost:
    """An engine with the sums of its records. `shared_by`: None when no record shares its seconds."""

    use: EngineUse
    sums: Sums
    shared_by: Unit | None

    @property
    def unshared(self) -> Money:
        """What it cost without being called by any record."""
        return self.use.for_time(self.use.device_s) if self.shared_by is None else Money()

    @property
    def lost(self) -> Money:
        """What tokens cost that no record has; never less than nothing, as a killed session's last clock is old."""
        use, sums = self.use, self.sums
        prompt = use.tokens - use.output_tokens
        counted = use.for_tokens(prompt=prompt, cached=use.cached_tokens, output=use.output_tokens)
        own = use.for_tokens(prompt=sums.prompt_tokens, cached=sums.cached_tokens, output=sums.output_tokens)
        return Money(max(0.0, counted.usd - own.usd))

    @property
    def money(self) -> Money:
        """All that it cost."""
        return self.sums.money + self.unshared + self.lost

    def as_dict(self) -> dict[str, Any]:
        """As JSON: its own count of calls and tokens beside the ledger's."""
        return {
            "replicas": self.use.replicas,
            "devices_per_replica": self.use.devices,
            "startup_s": self.use.startup_s,
            "busy_s": self.use.busy_s,
            "idle_s": self.use.idle_s,
            "device_hours": self.use.device_s / HOUR_S,
            "shared_by": self.shared_by,
            "calls": self.use.calls,
            "calls_in_ledger": self.sums.calls,
            "tokens": self.use.tokens,
            "tokens_in_ledger": self.sums.tokens,
            **self.money.as_dict(),
        }


@dataclass(frozen=True)
class SessionTime:
    """A session's wall clock against the clocks of its engines.

    `held_s`: how long engines were held, by the driver's clock; where it did not say, the whole session. `devices`: of
    all engines. `engine_s`: their start-up, busy and idle seconds times devices; it should be `held_s` x `devices`.
    """

    session: int
    host: str
    status: str
    wall_s: float
    held_s: float
    devices: float
    engine_s: float

    @property
    def difference(self) -> float | None:
        """The share of the device seconds that no engine's clock has; None for a session without engines."""
        return _difference(self.held_s * self.devices, self.engine_s)

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self) | {"device_s": self.held_s * self.devices, "difference": self.difference}


@dataclass(frozen=True)
class Cost:
    """What `read_cost` found. `per_query`: measure → p50, p95 and maximum over queries.

    The sums of `stages`, NO_STAGE and NOT_IN_LEDGER among them, are the total.
    """

    output: str
    status: str
    queries: int
    total: Sums
    stages: dict[str, Sums]
    per_query: dict[str, dict[str, float]]
    engines: list[EngineCost]
    sessions: list[SessionTime]

    @property
    def per_1000_queries(self) -> PerThousand:
        """What a thousand queries take."""
        return per_thousand(self.stages.values())

    @property
    def device_s(self) -> float:
        """What the clocks of all engines should add up to, over all sessions."""
        return sum(s.held_s * s.devices for s in self.sessions)

    @property
    def engine_s(self) -> float:
        """What they do add up to."""
        return sum(s.engine_s for s in self.sessions)

    @property
    def difference(self) -> float | None:
        """The share of the device seconds that no engine's clock has; None without engines."""
        return _difference(self.device_s, self.engine_s)

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "output": self.output,
            "status": self.status,
            "queries": self.queries,
            "total": self.total.as_dict(),
            "stages": {stage: sums.as_dict() for stage, sums in self.stages.items()},
            "per_1000_queries": self.per_1000_queries.as_dict(),
            "per_query": self.per_query,
            "engines": {engine.use.name: engine.as_dict() for engine in self.engines},
            "sessions": [s.as_dict() for s in self.sessions],
            "reconciliation": {
                "device_s": self.device_s,
                "engine_s": self.engine_s,
                "difference": self.difference,
            },
        }


def _difference(expected: float, found: float) -> float | None:
    return (expected - found) / expected if expected else None


def read_cost(root: str, endpoint: str | None = None) -> Cost:
    """Reads a run folder, local or s3://, of a run that may still be going on. Errors as those of `open_run`."""
    return cost_of(open_run(root, Storage(StorageConfig(endpoint_override=endpoint))))


def cost_of(run: RunFolder) -> Cost:
    """The cost of a run, from its folder."""
    same = same_engines(run.config)
    uses = {use.name: use for use in engine_uses(run)}
    records = [replace(r, engine=same.get(r.engine, r.engine)) for r in read_ledger(run)]
    priced = price(records, uses)
    own = by_engine(priced)
    engines = [_engine_cost(use, own.get(use.name, [])) for use in uses.values()]
    total, stages = add_up(priced), {stage: add_up(of) for stage, of in by_stage(priced).items()}
    unshared = [engine for engine in engines if engine.shared_by is None and engine.use.device_s]
    if unshared:
        no_stage = Sums(
            queries=total.queries,
            device_s=sum(engine.use.device_s for engine in unshared),
            money=sum((engine.unshared for engine in unshared), Money()),
        )
        stages[NO_STAGE] = no_stage
        total.device_s += no_stage.device_s
        total.money += no_stage.money
    lost = sum((engine.lost for engine in engines), Money())
    if lost.usd:
        stages[NOT_IN_LEDGER] = Sums(queries=total.queries, money=lost)
    total.money += lost
    return Cost(
        output=run.store.root,
        status=run.status,
        queries=run.queries,
        total=total,
        stages=stages,
        per_query=_per_query(priced, with_money=total.money.known is not None),
        engines=engines,
        sessions=[_session_time(run.config, same, session) for session in run.sessions],
    )


def _engine_cost(use: EngineUse, own: list[Priced]) -> EngineCost:
    shared = any(p.device_s for p in own)
    return EngineCost(use, add_up(own), unit_of(p.record for p in own) if shared else None)


def _per_query(priced: list[Priced], *, with_money: bool) -> dict[str, dict[str, float]]:
    sums = [add_up(of) for of in by_query(priced).values()]
    values: dict[str, list[float]] = {
        "calls": [s.calls for s in sums],
        "tokens": [s.tokens for s in sums],
        "device_s": [s.device_s for s in sums],
    }
    if with_money:
        values["usd"] = [s.money.usd for s in sums]
    return {name: spread(of) for name, of in values.items()}


def read_ledger(run: RunFolder) -> list[LedgerRecord]:
    """Of every finished shard from the ledger table, of others from the parts that are there."""
    finals, parts = run.files("ledger.parquet"), run.files("parts")
    store = run.store

    def of_table(uri: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = store.read_table(uri, schema.LEDGER_SCHEMA).to_pylist()
        return rows

    tables: list[str] = []
    unfinished: list[str] = []
    for shard in run.shards:
        final = finals.get(store.uri("ledger.parquet", shard.final))
        if final is not None:
            tables.append(final.uri)
        else:
            there = (parts.get(store.uri(name)) for name in shard.parts.values())
            unfinished.extend(entry.uri for entry in there if entry is not None)
    found = [*read_all(of_table, tables), *read_all(lambda uri: read_list(store, uri, "ledger"), unfinished)]
    return [LedgerRecord(**row) for rows in found for row in rows]


def same_engines(config: Config) -> dict[str, str]:
    """Engine → the first one of the same config: they are one pool, whose seconds must not count twice."""
    first: dict[str, str] = {}
    return {name: first.setdefault(engine.model_dump_json(), name) for name, engine in config.engines.items()}


def engine_uses(run: RunFolder) -> list[EngineUse]:
    """Every engine that the run's stages name or a session had, with its seconds over all sessions."""
    named = [name for stage in run.record["stages"] for name in stage["engines"]]
    return list(uses_of(run.config, named, run.sessions).values())


def uses_of(config: Config, named: Iterable[str], sessions: Iterable[Session]) -> dict[str, EngineUse]:
    """The engines of these names, those of one config once, and what else a session had, over these sessions."""
    same = same_engines(config)
    uses: dict[str, EngineUse] = {}
    for name in dict.fromkeys(same.get(name, name) for name in named):
        uses[name] = _unused(config, same, name)
    for session in sessions:
        for name, clocks in _clocks(session, same).items():
            terms = _terms_then(config, session, name)
            use = uses.get(name) or _unused(config, same, name, terms)
            uses[name] = use.with_clocks(clocks, terms)
    return uses


def _unused(config: Config, same: dict[str, str], name: str, then: Terms | None = None) -> EngineUse:
    """`then`: the terms of an engine that is of a config that is gone."""
    terms = then if then and name not in config.engines else _terms(config, same, name)
    return EngineUse(name=name, devices=terms.devices, price=terms.price)


def terms_of(config: Config, names: Iterable[str]) -> dict[str, Terms]:
    """What these engines are paid by; a session writes it down, as a later one may have another config."""
    same = same_engines(config)
    return {name: _terms(config, same, name) for name in names}


def _terms(config: Config, same: dict[str, str], name: str) -> Terms:
    """Devices of one replica: its GPUs, or the process where it has none (or is of a config that is gone)."""
    prices = (price for other, price in config.prices.items() if same[other] == same.get(name))
    return Terms(getattr(config.engines.get(name), "num_gpus", 0) or 1.0, next(prices, None))


def _terms_then(config: Config, session: Session, name: str) -> Terms:
    """Those of a session; where it has written none down, and for a price that nobody had set by then, those of now."""
    same = same_engines(config)
    now = _terms(config, same, name)
    written = session.record.get("terms", {})
    found = next((terms for other, terms in written.items() if same.get(other, other) == name), None)
    if found is None:
        return now
    try:
        price = now.price if found["price"] is None else PriceConfig.model_validate(found["price"])
    except ValidationError as error:
        raise OutputError(f"session {session.token} was written by another version of lancer: {error}") from None
    return Terms(found["devices"], price)


def _clocks(session: Session, same: dict[str, str]) -> dict[str, list[EngineClock]]:
    """Engine → the clocks of its replicas; an engine of several names once."""
    found: dict[str, list[EngineClock]] = {}
    try:
        for name, clocks in session.result.get("engines", {}).items():
            found.setdefault(same.get(name, name), [EngineClock(**clock) for clock in clocks])
    except TypeError as error:
        raise OutputError(f"session {session.token} was written by another version of lancer: {error}") from None
    return found


def _session_time(config: Config, same: dict[str, str], session: Session) -> SessionTime:
    clocks = _clocks(session, same)
    held_s = session.record.get("engines_s")
    devices = {name: _terms_then(config, session, name).devices for name in clocks}
    return SessionTime(
        session=session.token,
        host=str(session.record["host"]),
        status=session.status,
        wall_s=session.seconds,
        held_s=session.seconds if held_s is None else float(held_s),
        devices=sum(len(of) * devices[name] for name, of in clocks.items()),
        engine_s=sum((c.startup_s + c.busy_s + c.idle_s) * devices[name] for name, of in clocks.items() for c in of),
    )
