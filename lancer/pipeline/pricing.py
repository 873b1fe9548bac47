"""What a run's ledger comes to: each record's share of the seconds of its engine's devices, and money. Pure.

An engine is paid for as long as it is held: start-up, busy and idle seconds of its devices, by its own clock. They are
shared among the records that called it, by computed tokens where it counts tokens, else by pairs, else by calls. A
price is by the hour of a device, by tokens, or both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

import numpy as np

from lancer.config import PriceConfig
from lancer.engines.protocols import EngineClock
from lancer.stages.records import LedgerRecord

Unit = Literal["tokens", "pairs", "calls"]

HOUR_S: Final = 3600.0
_CLOCKED: Final = tuple(f.name for f in fields(EngineClock))


@dataclass(frozen=True)
class Money:
    """US dollars, and the engines whose use is not in them because it has no price."""

    usd: float = 0.0
    without: frozenset[str] = frozenset()

    def __add__(self, other: Money) -> Money:
        return Money(self.usd + other.usd, self.without | other.without)

    @property
    def known(self) -> float | None:
        """None when nothing of it has a price."""
        return None if self.without and not self.usd else self.usd

    def times(self, factor: float) -> Money:
        """The same for more or fewer."""
        return Money(self.usd * factor, self.without)

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"usd": self.known, "without_price": sorted(self.without)}


@dataclass(frozen=True)
class Terms:
    """What an engine is paid by: the devices of one replica, and its price."""

    devices: float = 1.0
    price: PriceConfig | None = None

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"devices": self.devices, "price": self.price and self.price.model_dump(mode="json")}


@dataclass(frozen=True, kw_only=True)
class EngineUse:
    """An engine over all sessions: seconds, calls and tokens of its replicas added up.

    `devices` (of one replica) and `price` are its terms now. Of sessions on other terms: `more_device_s` is what they
    held beyond so many devices, `more_usd` what they paid beyond this price.
    """

    name: str
    devices: float = 1.0
    price: PriceConfig | None = None
    replicas: int = 0
    startup_s: float = 0.0
    busy_s: float = 0.0
    idle_s: float = 0.0
    calls: int = 0
    tokens: int = 0  # prompts, with cached ones, and outputs
    cached_tokens: int = 0
    output_tokens: int = 0
    more_device_s: float = 0.0
    more_usd: float = 0.0

    @property
    def device_s(self) -> float:
        """Seconds for which its devices were held."""
        return (self.startup_s + self.busy_s + self.idle_s) * self.devices + self.more_device_s

    @property
    def spent(self) -> Money:
        """What it has cost, by its own clock and count; also what came to nothing."""
        prompt = self.tokens - self.output_tokens
        return self.for_time(self.device_s) + self.for_tokens(
            prompt=prompt, cached=self.cached_tokens, output=self.output_tokens
        )

    def with_clocks(self, clocks: Sequence[EngineClock], terms: Terms | None = None) -> EngineUse:
        """With what its replicas did in one more session, on its own terms or others."""
        added = replace(
            self,
            replicas=max(self.replicas, len(clocks)),
            **{name: getattr(self, name) + sum(getattr(c, name) for c in clocks) for name in _CLOCKED},
        )
        if terms is None or terms == Terms(self.devices, self.price):
            return added
        then = EngineUse(name=self.name, devices=terms.devices, price=terms.price).with_clocks(clocks)
        now = replace(then, price=self.price)
        return replace(
            added,
            more_device_s=self.more_device_s + then.device_s * (1 - self.devices / terms.devices),
            more_usd=self.more_usd + then.spent.usd - now.spent.usd,
        )

    def for_time(self, device_s: float) -> Money:
        """What so many seconds of a device cost; those of all sessions on other terms bear what these were dearer."""
        more = self.more_usd * device_s / self.device_s if self.more_usd and self.device_s else 0.0
        if self.price is None:
            return Money(more, without=frozenset({self.name}))
        return Money(device_s / HOUR_S * self.price.usd_per_device_hour + more)

    def for_tokens(self, *, prompt: int, cached: int, output: int) -> Money:
        """What so many tokens cost; `prompt` includes the cached ones."""
        if self.price is None:
            return Money(without=frozenset({self.name}))
        usd = (
            (prompt - cached) * self.price.usd_per_million_prompt_tokens
            + cached * self.price.usd_per_million_cached_tokens
            + output * self.price.usd_per_million_output_tokens
        )
        return Money(usd / 1e6)


@dataclass(frozen=True)
class Priced:
    """A record with its share. `reused`: what its reused calls would have cost; no money where nothing tells."""

    record: LedgerRecord
    device_s: float = 0.0
    money: Money = Money()
    reused: Money = Money()


def unit_of(records: Iterable[LedgerRecord]) -> Unit:
    """What the seconds of an engine are shared by, given its records."""
    records = list(records)
    units: tuple[Unit, ...] = ("tokens", "pairs", "calls")
    return next((unit for unit in units if any(_weight(r, unit) for r in records)), "calls")


def _weight(record: LedgerRecord, unit: Unit) -> int:
    if unit == "tokens":  # what a device computes: a cached token costs it nothing
        return record.prompt_tokens - record.cached_tokens + record.output_tokens
    return record.pairs if unit == "pairs" else record.calls


def _reused_weight(record: LedgerRecord, unit: Unit) -> int:
    return record.reused_tokens - record.reused_cached_tokens if unit == "tokens" else record.reused_calls


def price(records: Sequence[LedgerRecord], uses: Mapping[str, EngineUse]) -> list[Priced]:
    """Each record, in order, with its share of its engine. `uses` has every engine that a record names."""
    own: dict[str, list[LedgerRecord]] = {}
    for record in records:
        own.setdefault(record.engine, []).append(record)
    units = {name: unit_of(of) for name, of in own.items()}
    rates = {}  # seconds of a device per unit; none where nothing was computed
    for name, of in own.items():
        weight = sum(_weight(r, units[name]) for r in of)
        rates[name] = uses[name].device_s / weight if name and weight else None
    return [_price(r, uses[r.engine], units[r.engine], rates[r.engine]) if r.engine else Priced(r) for r in records]


def _price(record: LedgerRecord, use: EngineUse, unit: Unit, rate: float | None) -> Priced:
    device_s = (rate or 0.0) * _weight(record, unit)
    paid = use.for_time(device_s) + use.for_tokens(
        prompt=record.prompt_tokens, cached=record.cached_tokens, output=record.output_tokens
    )
    if not record.reused_calls:
        return Priced(record, device_s, paid)
    reused = use.for_tokens(
        prompt=record.reused_tokens - record.reused_output_tokens,
        cached=record.reused_cached_tokens,
        output=record.reused_output_tokens,
    )
    if rate is not None:
        reused += use.for_time(rate * _reused_weight(record, unit))
    elif use.price is not None and use.price.usd_per_device_hour:
        reused = Money(without=frozenset({use.name}))
    return Priced(record, device_s, paid, reused)


@dataclass
class Sums:
    """Records added up. `queries` are distinct."""

    queries: int = 0
    calls: int = 0
    pairs: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    device_s: float = 0.0
    money: Money = field(default_factory=Money)
    reused_calls: int = 0
    reused_tokens: int = 0
    reused_cached_tokens: int = 0
    reused_output_tokens: int = 0
    reused_money: Money = field(default_factory=Money)

    @property
    def cached_share(self) -> float | None:
        """Of the prompt tokens; None without any."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def tokens(self) -> int:
        """Prompt and output."""
        return self.prompt_tokens + self.output_tokens

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "queries": self.queries,
            **{name: getattr(self, name) for name in _ADDED},
            "cached_share": self.cached_share,
            **self.money.as_dict(),
            "paid_already": {
                "calls": self.reused_calls,
                "tokens": self.reused_tokens,
                "would_have_cost_usd": self.reused_money.known,
            },
        }


_ADDED: Final = ("calls", "pairs", "prompt_tokens", "cached_tokens", "output_tokens", "device_s")
_REUSED: Final = ("reused_calls", "reused_tokens", "reused_cached_tokens", "reused_output_tokens")


@dataclass(frozen=True)
class PerThousand:
    """What a thousand queries take: by the queries of each stage, as later stages may not have had them all yet."""

    counts: dict[str, float]
    money: Money

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return self.counts | self.money.as_dict()


def per_thousand(stages: Iterable[Sums]) -> PerThousand:
    """Of a run, given its stages."""
    counts, money = dict.fromkeys(_ADDED, 0.0), Money()
    for sums in stages:
        if sums.queries:
            factor = 1000 / sums.queries
            counts = {name: counts[name] + factor * getattr(sums, name) for name in _ADDED}
            money += sums.money.times(factor)
    return PerThousand(counts, money)


def add_up(priced: Iterable[Priced]) -> Sums:
    """The sums of some records."""
    sums, queries = Sums(), set()
    for p in priced:
        queries.add(p.record.query_id)
        for name in _ADDED[:-1]:
            setattr(sums, name, getattr(sums, name) + getattr(p.record, name))
        for name in _REUSED:
            setattr(sums, name, getattr(sums, name) + getattr(p.record, name))
        sums.device_s += p.device_s
        sums.money += p.money
        sums.reused_money += p.reused
    sums.queries = len(queries)
    return sums


def by_engine(priced: Iterable[Priced]) -> dict[str, list[Priced]]:
    """Records by engine; "" = none."""
    return _grouped(priced, "engine")


def by_stage(priced: Iterable[Priced]) -> dict[str, list[Priced]]:
    """Records by stage, in the order in which stages occur."""
    return _grouped(priced, "stage")


def by_query(priced: Iterable[Priced]) -> dict[str, list[Priced]]:
    """Records by query."""
    return _grouped(priced, "query_id")


def _grouped(priced: Iterable[Priced], name: str) -> dict[str, list[Priced]]:
    groups: dict[str, list[Priced]] = {}
    for p in priced:
        groups.setdefault(getattr(p.record, name), []).append(p)
    return groups


def spread(values: Sequence[float]) -> dict[str, float]:
    """p50, p95 and maximum over queries; {} for none."""
    if not values:
        return {}
    p50, p95 = np.percentile(values, [50, 95])
    return {"p50": float(p50), "p95": float(p95), "max": float(max(values))}
