"""From what a sample of queries would be asked to what a whole run takes, with its uncertainty. Pure.

A total is the number of queries times the sample's mean; its 95 % interval is Student's t with the correction for a
finite population (Cochran, Sampling Techniques, 1977, chapter 2), so that a sample of all queries has none. It is the
interval of drawing queries: that a guess about a model's answers is wrong is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from operator import attrgetter, mul
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lancer.pipeline.pricing import HOUR_S, EngineUse
from lancer.stages.records import LedgerRecord

CONFIDENCE: Final = 0.95
COUNTS: Final = ("calls", "pairs", "prompt_tokens", "cached_tokens", "output_tokens")

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Range:
    """A forecast and its interval; None where one query alone was drawn of several."""

    value: float
    low: float | None = None
    high: float | None = None

    def __add__(self, other: Range) -> Range:
        """Of sums that go up and down together: at least as wide as in truth."""
        return Range(self.value + other.value, _plus(self.low, other.low), _plus(self.high, other.high))

    def map(self, change: Callable[[float], float]) -> Range:
        """An increasing function of it."""
        ends = (None if end is None else change(end) for end in (self.low, self.high))
        return Range(change(self.value), *ends)

    @property
    def half_width(self) -> float | None:
        """As a share of the value; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / self.value if self.value else 0.0


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def total(values: Sequence[float] | FloatArray, population: int) -> Range:
    """Of `population` queries, given the value of each sampled one; never below what the sample itself has."""
    from scipy import stats

    drawn = np.asarray(values, np.float64)
    n = len(drawn)
    value = float(drawn.mean()) * population
    if n == population:
        return Range(value, value, value)
    if n < 2:
        return Range(value)
    error = population * float(drawn.std(ddof=1)) / n**0.5 * (1 - n / population) ** 0.5
    width = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * error
    return Range(value, max(value - width, float(drawn.sum())), value + width)


@dataclass(frozen=True)
class Rate:
    """How fast an engine was: seconds that one replica is busy per unit, and that it takes to start."""

    unit: str  # tokens (not cached ones) | calls
    busy_s: float
    startup_s: float


@dataclass(frozen=True)
class Rates:
    """Of an earlier run. `stretch`: its time without start-up, as a multiple of what its busiest engine was busy."""

    run: str
    engines: dict[str, Rate]
    stretch: float


@dataclass(frozen=True)
class StageForecast:
    """A stage, or all together. `device_hours` and `usd` are None where they are not known."""

    stage: str
    engine: str
    counts: dict[str, Range]
    device_hours: Range | None = None
    usd: Range | None = None

    @property
    def cached_share(self) -> float | None:
        """Of the prompt tokens; None without any."""
        prompt = self.counts["prompt_tokens"].value
        return self.counts["cached_tokens"].value / prompt if prompt else None


@dataclass(frozen=True)
class Forecast:
    """What a run takes, from its beginning; `total` is of all stages, `duration_h` of the wall clock.

    `plan` identifies what was forecast; `without_price`: engines whose use is in no sum of money, or not all of it, for
    want of a price or of a rate.
    """

    plan: str
    queries: int
    sampled: int
    stages: list[StageForecast]
    total: StageForecast
    duration_h: Range | None
    without_price: list[str]
    assumptions: list[str]

    def as_dict(self) -> dict[str, Any]:
        """As JSON; `forecast_of` reads it."""
        return asdict(self)


def forecast_of(record: Mapping[str, Any]) -> Forecast:
    """What `as_dict` gave. KeyError or TypeError: it is something else."""

    def range_of(value: Mapping[str, Any] | None) -> Range | None:
        return None if value is None else Range(**value)

    def stage_of(stage: Mapping[str, Any]) -> StageForecast:
        counts = {name: Range(**stage["counts"][name]) for name in COUNTS}
        hours, usd = range_of(stage["device_hours"]), range_of(stage["usd"])
        return StageForecast(stage["stage"], stage["engine"], counts, hours, usd)

    changed = {
        "stages": [stage_of(stage) for stage in record["stages"]],
        "total": stage_of(record["total"]),
        "duration_h": range_of(record["duration_h"]),
    }
    return Forecast(**{**record, **changed})


@dataclass(frozen=True)
class Sample:
    """What the sampled queries would be asked: the records of each stage, in the order of the stages."""

    queries: Sequence[str]
    population: int
    records: Sequence[LedgerRecord]

    def values(self, records: Iterable[LedgerRecord], value: Callable[[LedgerRecord], float]) -> FloatArray:
        """Per sampled query, added up over its records."""
        row = {query_id: i for i, query_id in enumerate(self.queries)}
        found = np.zeros(len(self.queries))
        for record in records:
            found[row[record.query_id]] += value(record)
        return found

    def total(self, records: Iterable[LedgerRecord], value: Callable[[LedgerRecord], float]) -> Range:
        """Over the population."""
        return total(self.values(records, value), self.population)

    def counts(self, records: Sequence[LedgerRecord]) -> dict[str, Range]:
        """Of everything that is counted."""
        return {name: self.total(records, attrgetter(name)) for name in COUNTS}


def forecast(
    sample: Sample, uses: Mapping[str, EngineUse], rates: Rates | None, *, plan: str, assumptions: Sequence[str]
) -> Forecast:
    """`uses` has every engine that a record names, with its replicas, devices and price."""
    by_stage: dict[str, list[LedgerRecord]] = {}
    for record in sample.records:
        by_stage.setdefault(record.stage, []).append(record)
    time = _time(sample, uses, rates)
    stages = [_stage(name, of, sample, uses, time) for name, of in by_stage.items()]
    engines = {r.engine: None for r in sample.records if r.engine}
    return Forecast(
        plan=plan,
        queries=sample.population,
        sampled=len(sample.queries),
        stages=stages,
        total=StageForecast(
            stage="total",
            engine="",
            counts=sample.counts(sample.records),
            device_hours=_sum([s.device_hours for s in stages]),
            usd=_sum([s.usd for s in stages]),
        ),
        duration_h=None if time is None else time.seconds.map(lambda s: s / HOUR_S),
        without_price=sorted(name for name in engines if not _priced(uses[name], time)),
        assumptions=list(assumptions),
    )


def _sum(ranges: Iterable[Range | None]) -> Range | None:
    """Of those that are known; None where none is."""
    known = [r for r in ranges if r is not None]
    return sum(known[1:], known[0]) if known else None


def _priced(use: EngineUse, time: _Time | None) -> bool:
    """Whether all that an engine costs is known."""
    return use.price is not None and (time is not None or not use.price.usd_per_device_hour)


def _priced_in_part(use: EngineUse, time: _Time | None) -> bool:
    """Whether something of it is: what tokens cost is known without rates."""
    return _priced(use, time) or (use.price is not None and use.price.per_token)


@dataclass(frozen=True)
class _Time:
    """How long the run takes, and the work of each engine in its unit, over the whole run."""

    seconds: Range
    work: dict[str, float]
    units: dict[str, str]


def _work(record: LedgerRecord, unit: str) -> float:
    if unit == "tokens":
        return record.prompt_tokens - record.cached_tokens + record.output_tokens
    return record.calls


def _time(sample: Sample, uses: Mapping[str, EngineUse], rates: Rates | None) -> _Time | None:
    """None where an engine's rate is not known. Engines start together, then each waits for the busiest one."""
    own: dict[str, list[LedgerRecord]] = {}
    for record in sample.records:
        if record.engine:
            own.setdefault(record.engine, []).append(record)
    if rates is None or not own or not own.keys() <= rates.engines.keys():
        return None
    busy, work = [], {}
    for name, records in own.items():
        rate = rates.engines[name]
        amount = sample.total(records, partial(_work, unit=rate.unit))
        work[name] = amount.value
        busy.append(amount.map(partial(mul, rate.busy_s / uses[name].replicas)))
    start = max(rates.engines[name].startup_s for name in own)
    longest = max(busy, key=lambda b: b.value)
    return _Time(
        longest.map(lambda s: start + s * rates.stretch), work, {name: rates.engines[name].unit for name in own}
    )


def _stage(
    name: str, records: Sequence[LedgerRecord], sample: Sample, uses: Mapping[str, EngineUse], time: _Time | None
) -> StageForecast:
    by_engine: dict[str, list[LedgerRecord]] = {}
    for record in records:
        if record.engine:
            by_engine.setdefault(record.engine, []).append(record)
    hours = {engine: _held(of, sample, uses[engine], time) for engine, of in by_engine.items()}
    return StageForecast(
        stage=name,
        engine=", ".join(by_engine),
        counts=sample.counts(records),
        device_hours=_sum(hours.values()),
        usd=_sum(
            _cost(of, sample, uses[engine], hours[engine])
            for engine, of in by_engine.items()
            if _priced_in_part(uses[engine], time)
        ),
    )


def _held(records: Sequence[LedgerRecord], sample: Sample, use: EngineUse, time: _Time | None) -> Range | None:
    """Device hours. An engine is held for the whole run; its stages share that by their work, as for `lancer cost`."""
    if time is None:
        return None
    work = sum(_work(r, time.units[use.name]) for r in records) * sample.population / len(sample.queries)
    share = work / time.work[use.name] if time.work[use.name] else 0.0
    return time.seconds.map(partial(mul, use.replicas * use.devices * share / HOUR_S))


def _cost(records: Sequence[LedgerRecord], sample: Sample, use: EngineUse, hours: Range | None) -> Range:
    """In dollars, by tokens and by the hour."""

    def by_tokens(r: LedgerRecord) -> float:
        return use.for_tokens(prompt=r.prompt_tokens, cached=r.cached_tokens, output=r.output_tokens).usd

    usd = sample.total(records, by_tokens)
    return usd if hours is None else usd + hours.map(lambda h: use.for_time(h * HOUR_S).usd)
