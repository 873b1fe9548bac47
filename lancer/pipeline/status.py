"""`lancer status`: how far a run is, who carries it out, what has failed and been spent. From another process, no Ray.

What is done is what lies in the folder, and since when by the store's clock, so that no other clock matters. What is
being worked on are the shards of `attempts/`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa

from lancer import schema
from lancer.errors import DamagedError, InputError
from lancer.pipeline import attempts
from lancer.pipeline.cost import engine_uses
from lancer.pipeline.folder import RunFolder, Session, ShardFiles, open_run, read_all, read_list
from lancer.pipeline.pricing import HOUR_S, Money
from lancer.pipeline.store import RunStore, parquet_bytes
from lancer.stages.records import QUERY_REASONS
from lancer.storage import Entry, Storage, StorageConfig

RECENT_S: Final = 300.0
LAST_FAILURES: Final = 5
_NO_FAILURES: Final = len(parquet_bytes(pa.Table.from_pylist([], schema=schema.FAILURE_SCHEMA)))  # bytes


@dataclass(frozen=True)
class Rate:
    """Queries per minute that the last session computed: in its last minutes while it runs, and overall."""

    recent: float | None = None
    overall: float | None = None


@dataclass(frozen=True)
class StageStatus:
    """Queries of one stage; `failed` are among the done ones."""

    stage: str
    done: int
    running: int
    failed: int
    to_do: int
    rate: Rate


@dataclass(frozen=True)
class Holder:
    """The last session: who carries out, or carried out, the run."""

    session: int
    host: str
    pid: int
    started: str
    heartbeat: str
    heartbeat_age_s: float
    alive: bool
    status: str


@dataclass(frozen=True)
class Spend:
    """What one engine has cost in all sessions: device hours, and money by its price."""

    engine: str
    device_hours: float
    money: Money


@dataclass(frozen=True)
class FailureSeen:
    """A failure record, and when its file was written by the store's clock."""

    query_id: str
    stage: str
    reason: str
    detail: str
    written: str


@dataclass(frozen=True)
class Status:
    """`finished`: queries that every stage is done with; `eta_s`: until all are, at the present rate."""

    output: str
    status: str
    queries: int
    finished: int
    rate: Rate
    eta_s: float | None
    session: Holder | None
    stages: list[StageStatus]
    spend: list[Spend]
    failures: list[FailureSeen]

    @property
    def spent(self) -> Money:
        """By all engines."""
        return sum((s.money for s in self.spend), Money())

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        engines = {s.engine: {"device_hours": s.device_hours, **s.money.as_dict()} for s in self.spend}
        return asdict(self) | {"spend": {**self.spent.as_dict(), "engines": engines}}


class StatusReader:
    """Reads a run's status, again and again; a file of failures never changes and is read once."""

    def __init__(self, root: str, endpoint: str | None = None) -> None:
        self._root, self._endpoint = root, endpoint
        self._failures: dict[str, list[dict[str, Any]]] = {}

    def read(self) -> Status:
        """The status now. Errors as those of `open_run`."""
        run = open_run(self._root, Storage(StorageConfig(endpoint_override=self._endpoint)))
        listed = _Listing(run)
        failures = self._newest_failures(listed)
        finished = sum(shard.queries for shard in run.shards if listed.whole(shard))
        rate = listed.rate(run.stages[-1])
        return Status(
            output=run.store.root,
            status=run.status,
            queries=run.queries,
            finished=finished,
            rate=rate,
            eta_s=_eta(run, run.queries - finished, rate),
            session=_holder(run.sessions[-1]) if run.sessions else None,
            stages=_stages(run, listed, failures),
            spend=_spend(run),
            failures=[_seen(entry, record) for entry, record in failures[:LAST_FAILURES]],
        )

    def watch(self, seconds: float) -> Iterator[Status]:
        """The status every so many seconds, until nobody carries the run out any more."""
        while True:
            status = self.read()
            yield status
            if status.session is None or not status.session.alive:
                return
            time.sleep(seconds)

    def _newest_failures(self, listed: _Listing) -> list[tuple[Entry, dict[str, Any]]]:
        """All failure records with their files, the newest first."""
        files = sorted(listed.failure_files(), key=lambda entry: -entry.modified)
        new = [entry.uri for entry in files if entry.uri not in self._failures]
        self._failures.update(zip(new, read_all(listed.read_failures, new), strict=True))
        return [(entry, record) for entry in files for record in self._failures[entry.uri]]


class _Listing:
    """Which of a run's files are there."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._parts, self._tables = run.files("parts"), run.files("failures.parquet")
        self._start, self._end = 0.0, 0.0
        if run.sessions:
            last = run.sessions[-1]
            self._start = last.written - last.seconds
            self._end = max([last.written, *(entry.modified for entry in self._parts.values())])

    def part(self, shard: ShardFiles, stage: str) -> Entry | None:
        """A stage's part."""
        return self._parts.get(self._run.store.uri(shard.parts[stage]))

    def whole(self, shard: ShardFiles) -> bool:
        """Whether every stage's part is there."""
        return all(self.part(shard, stage) for stage in self._run.stages)

    def running(self) -> Counter[str]:
        """Queries in flight, by the stage that their shard is at."""
        at: Counter[str] = Counter()
        if not self._run.sessions or not self._run.sessions[-1].alive:
            return at
        begun = set(attempts.begun(self._run.store.storage, self._run.store.root))
        for shard in self._run.shards:
            if shard.id in begun and not self.whole(shard):
                at[next(stage for stage in self._run.stages if not self.part(shard, stage))] += shard.queries
        return at

    def rate(self, stage: str) -> Rate:
        """Of the parts that the last session wrote."""
        if not self._run.sessions or self._end - self._start < 1:
            return Rate()
        parts = [(entry.modified, shard.queries) for shard in self._run.shards if (entry := self.part(shard, stage))]

        def per_minute(since: float) -> float:
            return sum(queries for written, queries in parts if written >= since) / (self._end - since) * 60

        recent = per_minute(max(self._start, self._end - RECENT_S)) if self._run.sessions[-1].alive else None
        return Rate(recent, per_minute(self._start))

    def failure_files(self) -> Iterator[Entry]:
        """What may hold failures: a finished shard's table unless its size says that it is empty, else its parts."""
        for shard in self._run.shards:
            table = self._tables.get(self._run.store.uri("failures.parquet", shard.final))
            if table is None:
                yield from (entry for stage in self._run.stages if (entry := self.part(shard, stage)))
            elif table.size != _NO_FAILURES:
                yield table

    def read_failures(self, uri: str) -> list[dict[str, Any]]:
        """The records of such a file; none of one that the run has replaced since it was listed, or will replace."""
        store: RunStore = self._run.store
        try:
            if uri.startswith(store.uri("failures.parquet")):
                rows: list[dict[str, Any]] = store.read_table(uri, schema.FAILURE_SCHEMA).to_pylist()
                return rows
            return read_list(store, uri, "failures")
        except (InputError, DamagedError):
            return []


def _stages(run: RunFolder, listed: _Listing, failures: Iterable[tuple[Entry, dict[str, Any]]]) -> list[StageStatus]:
    failed = {(f["stage"], f["query_id"]) for _, f in failures if f["reason"] in QUERY_REASONS}
    failed_at, running = Counter(stage for stage, _ in failed), listed.running()
    found = []
    for stage in run.stages:
        done = sum(shard.queries for shard in run.shards if listed.part(shard, stage))
        to_do = run.queries - done - running[stage]
        found.append(StageStatus(stage, done, running[stage], failed_at[stage], to_do, listed.rate(stage)))
    return found


def _eta(run: RunFolder, left: int, rate: Rate) -> float | None:
    per_minute = rate.recent or rate.overall
    return left / per_minute * 60 if run.status == "running" and per_minute else None


def _holder(session: Session) -> Holder:
    record = session.record
    return Holder(
        session=session.token,
        host=record["host"],
        pid=record["pid"],
        started=record["started"],
        heartbeat=record["heartbeat"],
        heartbeat_age_s=session.silent_s,
        alive=session.alive,
        status=session.status,
    )


def _spend(run: RunFolder) -> list[Spend]:
    """By the clocks and counts of the engines, so what is under way is in it."""
    return [Spend(use.name, use.device_s / HOUR_S, use.spent) for use in engine_uses(run)]


def _seen(entry: Entry, record: dict[str, Any]) -> FailureSeen:
    written = datetime.fromtimestamp(entry.modified, UTC).isoformat(timespec="seconds")
    return FailureSeen(record["query_id"], record["stage"], record["reason"], record["detail"], written)
