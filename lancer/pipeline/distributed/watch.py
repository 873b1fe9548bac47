"""What a run is doing: for its progress line, its session record, its budget, and to notice a hang."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import ray

from lancer.engines.protocols import EngineClock
from lancer.errors import EngineError, LancerError
from lancer.pipeline import attempts
from lancer.pipeline.budget import Budget
from lancer.pipeline.cost import terms_of
from lancer.pipeline.distributed.engine_pool import NO_TIME, EnginePool, add_clocks, age
from lancer.pipeline.execute import StageReport
from lancer.pipeline.limits import check_limits
from lancer.pipeline.plan import Plan
from lancer.pipeline.resume import Work
from lancer.pipeline.store import RunStore
from lancer.pipeline.summary import RunResult

REPORT_TIMEOUT_S: Final = 2.0
SHOWN: Final = 8  # shards that a message names
_OF_WORK: Final = (
    *("seconds", "calls", "reused_calls", "pairs"),
    *("prompt_tokens", "cached_tokens", "output_tokens"),
)


class Watch:
    """Over one session. A session is one pass, and a further one when files turn out to be damaged: each begins with
    `begin`, starts its engines after `starting`, and looks at them while `watching` is open."""

    def __init__(self, plan: Plan, store: RunStore, result: RunResult, budget: Budget) -> None:
        self._plan, self._store, self._result, self._budget = plan, store, result, budget
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self.total = self.done = 0  # queries of this pass
        self._work: Work | None = None
        self._reports: dict[str, list[StageReport]] = {}  # of the shards that this session has finished
        self._pools: dict[str, EnginePool] = {}
        self._asked = 0.0  # when the pools of this pass were
        self._starting: dict[str, int] = {}  # replicas of its engines that have no clock yet
        self._held: dict[str, float] = {}  # engine → seconds from when it was asked for to the last look, of all passes
        self._held_before: dict[str, float] = {}  # of those passes that are over
        self._gone: dict[str, list[EngineClock]] = {}  # of processes that are gone, per replica
        self._moved = time.monotonic()
        self._calls = -1

    def begin(self, work: Work) -> None:
        """A pass begins. A shard that is done again counts once: what is said of it now replaces what was."""
        todo = {s.id for s in work.todo}
        ours = tuple(s for s in self._plan.shards if s.id in todo or s.id in self._reports)
        counted = RunResult(self._result.output, self._result.queries)
        counted.count_reused(self._plan, replace(work, todo=ours), self._store)
        for shard, reports in self._reports.items():
            if shard not in todo:
                counted.count(reports)
        with self._lock:
            self._result.stages = counted.stages
            self._work, self.done = work, 0
            self.total = sum(s.table.num_rows for s in work.todo)
        check_limits(self._plan.config.limits, self._result)

    def starting(self, pools: dict[str, EnginePool], since: float) -> None:
        """These pools were asked for at that time of the monotonic clock."""
        with self._lock:
            self._asked = since
            self._starting = {name: pool.config.replicas for name, pool in pools.items()}
            self._held_before = dict(self._held)
            self._gone = {name: list(clocks) for name, clocks in self._result.engines.items()}

    @contextlib.contextmanager
    def watching(self, pools: dict[str, EnginePool]) -> Iterator[None]:
        """While it is open, the clocks of these pools are looked at; a last time at the end."""
        self._pools = pools
        self._moved = time.monotonic()  # starting is no standing still, and has a limit of its own
        try:
            yield
        finally:
            self._poll()
            self._pools = {}

    def finished(self, shard: str, queries: int, reports: list[StageReport]) -> None:
        """One more shard."""
        before = self._reports.get(shard)
        if before is not None:
            reports = [together(old, new) for old, new in zip(before, reports, strict=True)]
        with self._lock:
            self.done += queries
            self._moved = time.monotonic()
            self._reports[shard] = reports
            self._result.count(reports)
        check_limits(self._plan.config.limits, self._result)
        if self.done < self.total:
            self.check_budget()

    @property
    def finished_shards(self) -> frozenset[str]:
        """In all passes."""
        return frozenset(self._reports)

    def engine_line(self) -> str:
        """`llm 1,230 calls`."""
        self._poll()
        return ", ".join(f"{name} {sum(c.calls for c in of):,} calls" for name, of in self._result.engines.items())

    def _poll(self) -> None:
        with self._lock:
            for name, pool in self._pools.items():
                with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
                    self._result.engines[name] = self._with_gone(name, pool.clocks(timeout=REPORT_TIMEOUT_S))
                    self._held[name] = self._held_before.get(name, 0.0) + time.monotonic() - self._asked
                    self._starting.pop(name, None)
            calls = sum(c.calls for of in self._result.engines.values() for c in of)
            if calls != self._calls:
                self._calls, self._moved = calls, time.monotonic()

    def _with_gone(self, name: str, clocks: list[EngineClock]) -> list[EngineClock]:
        """The clocks, and those of earlier processes of the same replicas: a clock that went back is another one's."""
        before = self._result.engines.get(name)
        gone = self._gone.setdefault(name, [NO_TIME] * len(clocks))
        for i, clock in enumerate(clocks):
            if before and age(add_clocks(gone[i], clock)) < age(before[i]):
                gone[i] = before[i]
        return [add_clocks(past, clock) for past, clock in zip(gone, clocks, strict=True)]

    def check_budget(self) -> None:
        """BudgetError when the run has spent what it may, by the last look at its engines: some seconds ago."""
        now = time.monotonic()
        starting = replace(NO_TIME, startup_s=now - self._asked)
        with self._lock:
            clocks = dict(self._result.engines)
            for name, replicas in self._starting.items():
                clocks[name] = [add_clocks(gone, starting) for gone in self._gone.get(name, [NO_TIME] * replicas)]
        self._budget.check(clocks, now - self._began)

    def check_start(self, engine: str) -> None:
        """EngineError when an engine has been starting for longer than `limits.startup_s`."""
        waited, limit = time.monotonic() - self._asked, self._plan.config.limits.startup_s
        if waited > limit:
            raise EngineError(
                f"engine {engine!r} has not started in {waited:.0f} s (limits.startup_s); the run can be resumed"
            )

    def check_stall(self) -> None:
        """EngineError when nothing has moved for `limits.stall_s`; says what each actor and worker was doing."""
        if time.monotonic() - self._moved <= self._plan.config.limits.stall_s:
            return
        self._poll()
        silent = time.monotonic() - self._moved
        if silent > self._plan.config.limits.stall_s:
            doing = "; ".join([*self._engines_at(), *self._shards_at()])
            raise EngineError(f"nothing has moved for {silent:.0f} s (limits.stall_s): {doing}; the run can be resumed")

    def _engines_at(self) -> Iterator[str]:
        """`llm[0]: 3 calls, the oldest (generate) for 1805 s`, for each replica."""
        for pool in dict.fromkeys(self._pools.values()):
            of = pool.doing(REPORT_TIMEOUT_S)
            for i, doing in enumerate(of):
                name = pool.name if len(of) == 1 else f"{pool.name}[{i}]"
                yield f"{name}: {doing or 'does not answer'}"

    def _shards_at(self) -> Iterator[str]:
        """`shard 0101 in judge`, for each that a worker has begun."""
        work = self._work
        if work is None:
            return
        try:
            begun = attempts.begun(self._store.storage, self._store.root)
            parts = self._store.parts(self._plan.stages, self._plan.shards) if begun else {}
        except LancerError:  # the store may be what hangs
            return
        for shard in begun[:SHOWN]:
            keys = ((p.name, shard) for p in self._plan.stages)
            at = next((k for k in keys if k not in work.done and parts.get(k) in (None, work.parts.get(k))), None)
            yield f"shard {shard} in {at[0] if at else 'its final tables'}"
        if begun[SHOWN:]:
            yield f"and {len(begun) - SHOWN} other shards"

    def report(self) -> dict[str, Any]:
        """For the session record."""
        self._poll()
        with self._lock:
            result = self._result.as_dict()
            held_s = self._held_s()
        return {
            "queries_to_do": self.total,
            "queries_done": self.done,
            "engines_s": held_s,
            "terms": {name: of.as_dict() for name, of in terms_of(self._plan.config, result["engines"]).items()},
            "result": result,
        }

    def _held_s(self) -> float:
        """Times all devices it gives their device seconds, also where some engines were held in one pass only."""
        terms = terms_of(self._plan.config, self._held)
        devices = {name: terms[name].devices * len(self._result.engines[name]) for name in self._held}
        return sum(self._held[n] * devices[n] for n in devices) / (sum(devices.values()) or 1.0)


def together(before: StageReport, now: StageReport) -> StageReport:
    """A stage on a shard that was done twice in one session: the result of the second time, the work of both."""
    if before.reused:
        return now
    if now.reused:
        return before
    return replace(now, **{name: getattr(before, name) + getattr(now, name) for name in _OF_WORK})
