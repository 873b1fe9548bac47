"""A plan as a Ray Data pipeline: one row per query, one block per shard, one map per stage.

Ray Data fuses the maps into one task per shard; several shards are in flight, so engines are fed from several stages at
once. Tasks are light: they wait for engines, which are pools of actors beside the dataset. Everything that matters is
committed to the run folder by the tasks; what goes back to the driver are counts.
"""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import ray
from ray.data import TaskPoolStrategy
from ray.util.annotations import RayDeprecationWarning
from ray.util.metrics import Counter

from lancer import errors
from lancer.errors import LancerError, unforeseen
from lancer.pipeline.attempts import Attempts
from lancer.pipeline.distributed.engine_pool import PooledEngines
from lancer.pipeline.execute import StageReport, Surroundings, run_stage
from lancer.pipeline.final_tables import final_tables
from lancer.pipeline.finish import final_name
from lancer.pipeline.journal import Journal
from lancer.pipeline.plan import Plan, PlannedStage
from lancer.pipeline.resume import Work, calls_folder, journal_files
from lancer.pipeline.store import RunStore, tables_of
from lancer.schema import Scale

RETRIES: Final = 30  # of a shard whose worker dies; its queries that kill workers are set aside before


@dataclass(frozen=True)
class _Assignment:
    """What is known of one shard beside its rows, with which it travels: what goes to every worker does not grow with
    the number of shards."""

    shard: str
    parts: dict[str, str]  # stage → the name of its part
    there: dict[str, str]  # stage → its part, where the plan found one
    done: list[str]  # stages whose part can stay
    retry: dict[str, list[str]]  # stage → queries for which what was answered before must not do again
    final: str  # the name of its final tables
    finals: list[str]  # those that the plan found
    journals: dict[str, list[str]]  # engine → files that the plan found


@dataclass(frozen=True)
class _Carrier:
    """What every task of a run needs."""

    store: RunStore
    stages: tuple[PlannedStage, ...]
    folders: dict[str, str]  # of journals, by engine
    engines: PooledEngines
    scale: Scale
    orders: tuple[str, ...]  # that reranking makes
    attempts: int

    def begin(self, table: pa.Table) -> pa.Table:
        """Writes down that work on the shard begins; how often it did travels in a column."""
        attempts = Attempts.of(self.store.storage, self.store.root, _assignment(table).shard, self.attempts)
        attempts.begin()
        return table.append_column("starts", pa.array([attempts.starts] * table.num_rows))

    def stage(self, number: int, table: pa.Table) -> pa.Table:
        """One stage on one shard; its report travels in a column."""
        stage, own, starts = self.stages[number], _assignment(table), _starts(table)
        planned, name = own.there.get(stage.name), own.parts[stage.name]
        # Looked up again after a start without an end, which may have come so far.
        found = self.store.find(name) if starts > 1 and stage.name not in own.done else [planned]
        there = found[-1] if found else None
        redo = stage.name not in own.done and there == planned
        at = Surroundings(
            store=self.store,
            engines=self.engines,
            alone=self.engines.alone,
            journals=lambda: {name: self._journal(name, own, starts) for name in stage.stage.engines},
            attempts=Attempts.of(self.store.storage, self.store.root, own.shard, self.attempts, starts=starts),
        )
        retry = own.retry.get(stage.name, ())
        table, report = run_stage(stage, table, name=name, there=there, redo=redo, at=at, retry=retry)
        _METERS.count(report)
        line = json.dumps(report.as_dict())
        return table.append_column(f"report:{stage.name}", pa.array([line] * table.num_rows, pa.string()))

    def _journal(self, engine: str, own: _Assignment, starts: int) -> Journal:
        folder, files = self.folders[engine], set(own.journals.get(engine, ()))
        if starts > 1:
            files.update(entry.uri for entry in self.store.storage.list(folder, f"{own.shard}-"))
        return Journal(self.store.storage, folder, own.shard, sorted(files))

    def finish(self, table: pa.Table) -> pa.Table:
        """Commits the shard's final tables; gives one row with the reports."""
        own, starts = _assignment(table), _starts(table)
        names = {folder: self.store.uri(folder, own.final) for folder in tables_of(self.stages)}
        replaced = [uri for name in names.values() for uri in self.store.find(name)] if starts > 1 else own.finals
        for uri in replaced:
            self.store.storage.delete(uri)  # an interruption here leaves the shard unfinished
        for folder, content in final_tables(table, self.scale, self.orders).items():
            self.store.write_table(names[folder], content)
        reports = [json.loads(table[f"report:{s.name}"][0].as_py()) for s in self.stages]
        return _result(shard=own.shard, queries=table.num_rows, reports=json.dumps(reports))


def _assignment(table: pa.Table) -> _Assignment:
    return _Assignment(**json.loads(table["assignment"][0].as_py()))


def _starts(table: pa.Table) -> int:
    starts: int = table["starts"][0].as_py()
    return starts


_RESULT: Final = pa.schema(
    [("shard", pa.string()), ("queries", pa.int64()), ("reports", pa.string()), ("error", pa.string())]
)


def _result(*, shard: str = "", queries: int = 0, reports: str = "[]", error: str = "") -> pa.Table:
    return pa.table([[shard], [queries], [reports], [error]], schema=_RESULT)


def _guarded(call: Callable[[pa.Table], pa.Table], table: pa.Table) -> pa.Table:
    """`call`, its error as a result: Ray Data's wrapping keeps only the text of a traceback."""
    if table.schema.equals(_RESULT):
        return table  # an earlier step failed
    try:
        return call(table)
    except LancerError as error:
        return _result(error=json.dumps([type(error).__name__, str(error)]))
    except ray.exceptions.RayError:
        raise
    except Exception as error:  # noqa: BLE001 - the driver raises it, with its place in the code
        return _result(error=json.dumps([LancerError.__name__, unforeseen(error)]))


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
    shards: ray.data.Dataset, plan: Plan, store: RunStore, engines: PooledEngines, *, count: int
) -> ray.data.Dataset:
    """`shards` is of `shard_blocks`, `count` of them; the result has one row per shard: `shard`, `queries`, `reports`,
    `error`.
    """
    carrier = _Carrier(
        store=store,
        stages=plan.stages,
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

    def begin(table: pa.Table) -> pa.Table:
        return _guarded(lambda row: _fetch(shared).begin(_unpacked(row)), table)

    def write(table: pa.Table) -> pa.Table:
        return _guarded(lambda rows: _fetch(shared).finish(rows), table)

    options: dict[str, Any] = {
        "batch_format": "pyarrow",
        "batch_size": None,  # a whole block, which is a whole shard
        "zero_copy_batch": True,
        "num_cpus": plan.config.ray.worker_cpus,
        "compute": TaskPoolStrategy(size=min(plan.config.ray.workers, count)),
        "max_retries": RETRIES,
    }
    with warnings.catch_warnings():
        # Ray 2.60 deprecates what is none of its named parameters and has none for `max_retries`; given by
        # `ray_remote_args_fn` the maps would not be fused.
        warnings.simplefilter("ignore", RayDeprecationWarning)
        for call in (begin, *map(step, range(len(plan.stages))), write):
            shards = shards.map_batches(call, **options)
    return shards


def shard_blocks(plan: Plan, store: RunStore, work: Work) -> ray.data.Dataset:
    """One block per shard that is to do: a row with its assignment and its table, which `begin` unpacks.

    A block of one row is measured on the driver. Ray measures tables in tasks of its own: 11 ms each, and a CPU to wait
    for before anything else starts.
    """
    journals = journal_files(plan, store, work)
    rows = []
    for shard in work.todo:
        there = {p.name: work.parts[p.name, shard.id] for p in plan.stages if (p.name, shard.id) in work.parts}
        own = _Assignment(
            shard=shard.id,
            parts={p.name: store.part(p, shard) for p in plan.stages},
            there=there,
            done=[name for name in there if (name, shard.id) in work.done],
            retry={p.name: queries for p in plan.stages if (queries := work.retry.get((p.name, shard.id)))},
            final=final_name(plan, shard),
            finals=work.finals[shard.id],
            journals={engine: list(files) for engine, files in journals.get(shard.id, {}).items()},
        )
        rows.append({"assignment": json.dumps(asdict(own)), "table": _packed(shard.table)})
    return ray.data.from_items(rows, override_num_blocks=len(rows))


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _unpacked(row: pa.Table) -> pa.Table:
    table = pa.ipc.open_stream(row["table"][0].as_py()).read_all()
    return table.append_column("assignment", pa.array([row["assignment"][0].as_py()] * table.num_rows, pa.string()))


@lru_cache(maxsize=1)
def _fetch(shared: ray.ObjectRef[Any]) -> _Carrier:
    """Once per worker. What is there by then stays, and need not be looked at with every shard's garbage: of a judged
    query that was a sixth of the time."""
    carrier: _Carrier = ray.get(shared)
    gc.collect()
    gc.freeze()
    return carrier
