"""A plan as a Ray Data pipeline: one row per query, one block per shard, one map per stage.

Ray Data fuses the maps into one task per shard; several shards are in flight, so engines are fed from several stages at
once. Tasks are light: they wait for engines, which are pools of actors beside the dataset. Everything that matters is
committed to the run folder by the tasks; what goes back to the driver are counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import ray
from ray.data import TaskPoolStrategy
from ray.util.metrics import Counter

from lancer import errors
from lancer.errors import LancerError
from lancer.pipeline.distributed.engine_pool import PooledEngines
from lancer.pipeline.execute import StageReport, Surroundings, final_tables, run_stage
from lancer.pipeline.finish import final_name
from lancer.pipeline.journal import Journal
from lancer.pipeline.plan import Plan, PlannedStage, Shard
from lancer.pipeline.resume import Work, calls_folder, journal_files
from lancer.pipeline.store import RunStore, tables_of
from lancer.schema import Scale


@dataclass(frozen=True)
class _Carrier:
    """What every task of a run needs; goes to the workers once."""

    store: RunStore
    stages: tuple[PlannedStage, ...]
    work: Work
    parts: dict[tuple[str, str], str]  # (stage, shard) → the name of its part
    names: dict[str, str]  # shard → the name of its final tables
    journals: dict[str, dict[str, tuple[str, ...]]]
    folders: dict[str, str]  # of journals, by engine
    engines: PooledEngines
    scale: Scale
    orders: tuple[str, ...]  # that reranking makes
    attempts: int

    def stage(self, number: int, table: pa.Table) -> pa.Table:
        """One stage on one shard; its report travels in a column."""
        stage, shard = self.stages[number], table["shard"][0].as_py()
        at = Surroundings(
            store=self.store,
            engines=self.engines,
            alone=self.engines.alone,
            journals=lambda: {name: self._journal(name, shard) for name in stage.stage.engines},
            attempts=self.attempts,
        )
        part = (stage.name, shard)
        planned, name = self.work.parts.get(part), self.parts[part]
        # Looked up again: an attempt at this task that was killed may have come so far.
        found = [planned] if part in self.work.done else self.store.find(name)
        there = found[-1] if found else None
        redo = part not in self.work.done and there == planned
        table, report = run_stage(stage, table, name=name, there=there, redo=redo, at=at)
        _METERS.count(report)
        line = json.dumps(report.as_dict())
        return table.append_column(f"report:{stage.name}", pa.array([line] * table.num_rows, pa.string()))

    def _journal(self, engine: str, shard: str) -> Journal:
        own = (entry.uri for entry in self.store.storage.list(self.folders[engine], f"{shard}-"))
        files = {*self.journals[engine].get(shard, ()), *own}
        return Journal(self.store.storage, self.folders[engine], shard, sorted(files))

    def finish(self, table: pa.Table) -> pa.Table:
        """Commits the shard's final tables; gives one row with the reports."""
        shard = table["shard"][0].as_py()
        names = {folder: self.store.uri(folder, self.names[shard]) for folder in tables_of(self.stages)}
        for name in names.values():
            for uri in self.store.find(name):
                self.store.storage.delete(uri)  # what this replaces; an interruption here leaves the shard unfinished
        for folder, content in final_tables(table, self.scale, self.orders).items():
            self.store.write_table(names[folder], content)
        reports = [json.loads(table[f"report:{s.name}"][0].as_py()) for s in self.stages]
        return _result(queries=table.num_rows, reports=json.dumps(reports))


_RESULT: Final = pa.schema([("queries", pa.int64()), ("reports", pa.string()), ("error", pa.string())])


def _result(*, queries: int = 0, reports: str = "[]", error: str = "") -> pa.Table:
    return pa.table([[queries], [reports], [error]], schema=_RESULT)


def _guarded(call: Callable[[pa.Table], pa.Table], table: pa.Table) -> pa.Table:
    """`call`, its error as a result: Ray Data's wrapping keeps only the text of a traceback."""
    if table.schema.equals(_RESULT):
        return table  # an earlier step failed
    try:
        return call(table)
    except LancerError as error:
        return _result(error=json.dumps([type(error).__name__, str(error)]))


def raise_error(packed: str) -> None:
    """Raises what a task's `error` says; nothing for ""."""
    if packed:
        kind, message = json.loads(packed)
        raise getattr(errors, kind if kind != "DamagedError" else "OutputError")(message)


@dataclass
class _Meters:
    """The counters of a worker process in Ray's metrics, made at first use."""

    counters: dict[str, Counter] = field(default_factory=dict)

    def count(self, report: StageReport) -> None:
        """Adds one stage on one shard."""
        if report.reused:
            return
        values = {"queries": report.queries, "failures": sum(report.failures.values())}
        for name in ("calls", "pairs", "prompt_tokens", "cached_tokens", "output_tokens"):
            values[name] = getattr(report, name)
        for name, value in values.items():
            if name not in self.counters:
                description = f"{name.replace('_', ' ')} of finished (stage, shard) calls"
                self.counters[name] = Counter(f"lancer_{name}", description=description, tag_keys=("stage",))
            if value:
                self.counters[name].inc(value, tags={"stage": report.stage})


_METERS = _Meters()


def build_dataset(
    shards: ray.data.Dataset, plan: Plan, store: RunStore, work: Work, engines: PooledEngines
) -> ray.data.Dataset:
    """`shards` has one block per shard of `work.todo`; the result one row per shard: `queries`, `reports`, `error`."""
    carrier = _Carrier(
        store=store,
        stages=plan.stages,
        work=replace(work, todo=()),  # their rows travel as blocks
        parts={(p.name, s.id): store.part(p, s) for s in work.todo for p in plan.stages},
        names={s.id: final_name(plan, s) for s in work.todo},
        journals=journal_files(plan, store, work),
        folders={name: calls_folder(plan, store, name) for name in plan.engines},
        engines=engines,
        scale=plan.scale,
        orders=tuple(step.order_name for step in plan.config.rerank),
        attempts=plan.config.limits.attempts,
    )
    shared = ray.put(carrier)

    def step(number: int) -> Callable[[pa.Table], pa.Table]:
        def stage(table: pa.Table) -> pa.Table:
            return _guarded(lambda rows: _fetch(shared).stage(number, rows), table)

        stage.__name__ = plan.stages[number].name
        return stage

    def write(table: pa.Table) -> pa.Table:
        return _guarded(lambda rows: _fetch(shared).finish(rows), table)

    options: dict[str, Any] = {
        "batch_format": "pyarrow",
        "batch_size": None,  # a whole block, which is a whole shard
        "zero_copy_batch": True,
        "num_cpus": plan.config.ray.worker_cpus,
        "compute": TaskPoolStrategy(size=min(plan.config.ray.workers, len(work.todo))),
    }
    for number in range(len(plan.stages)):
        shards = shards.map_batches(step(number), **options)
    return shards.map_batches(write, **options)


def shard_blocks(shards: tuple[Shard, ...]) -> ray.data.Dataset:
    """One block per shard. Asks Ray for a whole CPU for a moment: make it before the pools take theirs."""
    return ray.data.from_arrow([s.table for s in shards])


def _fetch(shared: ray.ObjectRef[Any]) -> _Carrier:
    carrier: _Carrier = ray.get(shared)
    return carrier
