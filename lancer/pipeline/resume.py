"""What an output folder holds already, what of it can stay, and why the rest cannot."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from lancer import schema
from lancer.config import Config
from lancer.digests import digest
from lancer.errors import DamagedError, OutputError
from lancer.pipeline import finish
from lancer.pipeline.folder import read_list
from lancer.pipeline.inputs import Inputs
from lancer.pipeline.journal import call_prefix
from lancer.pipeline.plan import Plan, Shard, make_plan, overlapping
from lancer.pipeline.store import RunStore, in_order, parquet_bytes, tables_of
from lancer.stages.records import ANSWER_REASONS
from lancer.storage import join

Mode = Literal["resume", "overwrite", "fail-if-exists"]

QUERIES: Final = "queries.parquet"  # query_id and a digest of each request of the run
_QUERY_COLUMNS: Final = ("query_id", "text", "title", "background", "problem_statement")


@dataclass(frozen=True)
class Work:
    """What there is to do.

    parts: (stage, shard) → its part, for those that are there; done: those of them that can stay; finals: shard → its
    files in the final tables; todo: the shards that are not finished; retry: (stage, shard) → the queries for which
    what was answered before must not do again.
    """

    parts: dict[tuple[str, str], str]
    done: frozenset[tuple[str, str]]
    finals: dict[str, list[str]]
    todo: tuple[Shard, ...]
    retry: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def needs(self, stage: str) -> bool:
        """Whether some shard has to run that stage."""
        return any((stage, shard.id) not in self.done for shard in self.todo)


def open_output(store: RunStore, mode: Mode) -> dict[str, Any] | None:
    """`run.json` of the run that goes on; None for a new one. OutputError: unwritable, no run folder, or forbidden."""
    store.storage.check_writable(store.root)
    begun = store.storage.exists(store.uri("run.json"))
    before = store.read_json() if begun and mode != "overwrite" else None
    if before is None:
        if not begun and not store.only_ours():
            raise OutputError(
                f"{store.root} holds files, but no run.json: it is no run folder; choose another `output`"
            )
        return None
    if mode == "fail-if-exists":
        raise OutputError(f"{store.root} holds a run already")
    return before


def plan_in(store: RunStore, config: Config, inputs: Inputs, mode: Mode) -> tuple[Plan, dict[str, Any] | None]:
    """The plan, and `run.json` of the run that it goes on with. OutputError: the folder is not for this run."""
    before = open_output(store, mode)
    plan = make_plan(config, inputs, store.storage, shard_bits=before.get("shard_bits") if before else None)
    if before is not None:
        check_same_run(plan, store, before)
    return plan, before


def check_same_run(plan: Plan, store: RunStore, before: dict[str, Any]) -> None:
    """OutputError when the folder is of another corpus, or none of its requests is among this run's."""
    was, now = before.get("inputs", {}), input_record(plan)
    if was.get("documents") != now["documents"] and was.get("documents_digest") != now["documents_digest"]:
        raise OutputError(
            _another(store, f"its documents come from {was.get('documents')}, now from {now['documents']}")
        )
    uri = store.uri(QUERIES)
    if store.storage.exists(uri):
        try:
            old = pq.read_table(io.BytesIO(store.storage.read(uri))).to_pylist()
        except pa.ArrowException:
            return  # damaged: what can be reused is decided by the keys of the parts, not by this list
        new = {row["query_id"]: row["digest"] for row in query_digests(plan).to_pylist()}
        if not any(new.get(row["query_id"]) == row["digest"] for row in old):
            raise OutputError(_another(store, "none of its requests is among these"))


def _another(store: RunStore, why: str) -> str:
    return f"{store.root} holds another run: {why}; choose another `output`, or replace it with --overwrite"


def input_record(plan: Plan) -> dict[str, str]:
    """For `run.json`."""
    return {
        "documents": f"{plan.source.kind} {plan.source.location}",
        "documents_digest": plan.source.digest,
        "requests": plan.config.requests,
        "requests_digest": digest(query_digests(plan).to_pylist()),
    }


def query_digests(plan: Plan) -> pa.Table:
    """Query ids and digests of the requests."""
    rows = plan.inputs.table.select(list(_QUERY_COLUMNS)).to_pylist()
    return pa.table({"query_id": [r["query_id"] for r in rows], "digest": [digest(r)[:16] for r in rows]})


def find_work(plan: Plan, store: RunStore, *, retry_failed: bool = False) -> Work:
    """A few listings; with `retry_failed` also the failures in parts of shards that have some."""
    parts = store.parts(plan.stages, plan.shards)
    done = frozenset(parts)
    finals = finish.final_parts(plan, store)
    retry = dict(_to_retry(plan, store, parts, finals)) if retry_failed else {}
    done -= retry.keys()
    todo = tuple(
        s
        for s in plan.shards
        if len(finals[s.id]) < len(tables_of(plan.stages)) or any((p.name, s.id) not in done for p in plan.stages)
    )
    return Work(parts, done, finals, todo, retry)


def with_failures(shards: Sequence[Shard], finals: dict[str, list[str]], store: RunStore) -> list[Shard]:
    """Those whose parts may hold failures: all but those with a table of failures that is empty, by its size."""
    empty = len(parquet_bytes(schema.FAILURE_SCHEMA.empty_table()))
    tables = store.storage.list(store.uri("failures.parquet"))
    without = {entry.uri for entry in tables if entry.size <= empty}
    return [shard for shard in shards if without.isdisjoint(finals[shard.id])]


def _to_retry(
    plan: Plan, store: RunStore, parts: dict[tuple[str, str], str], finals: dict[str, list[str]]
) -> Iterator[tuple[tuple[str, str], list[str]]]:
    """The (stage, shard) with failure records, and those that read what such a stage adds; see `Work.retry`."""
    there = [
        (stage, shard, part)
        for shard in with_failures(plan.shards, finals, store)
        for stage in plan.stages
        if (part := parts.get((stage.name, shard.id))) is not None
    ]
    changed: dict[str, set[str]] = {}  # shard → columns
    for (stage, shard, _), failures in zip(there, in_order(lambda at: _failures(store, at[2]), there), strict=True):
        columns = changed.setdefault(shard.id, set())
        if failures or failures is None or columns & {f.name for f in stage.stage.reads}:
            columns |= {f.name for f in stage.stage.adds}
            unread = {f["query_id"] for f in failures or () if f["reason"] in ANSWER_REASONS}
            yield (stage.name, shard.id), sorted(unread)


def _failures(store: RunStore, part: str) -> list[dict[str, Any]] | None:
    """None when it is damaged: then it is made again."""
    try:
        return read_list(store, part, "failures")
    except DamagedError:
        return None


def journal_files(plan: Plan, store: RunStore, work: Work) -> dict[str, dict[str, tuple[str, ...]]]:
    """Shard → engine → the journals that may hold answers for it, where there are any; one listing per engine."""
    files: dict[str, dict[str, tuple[str, ...]]] = {}
    for engine in plan.engines:
        by_prefix: dict[str, list[str]] = {}
        for entry in store.storage.list(calls_folder(plan, store, engine)):
            by_prefix.setdefault(call_prefix(entry.uri), []).append(entry.uri)
        for shard, prefixes in overlapping([s.id for s in work.todo], list(by_prefix)).items():
            files.setdefault(shard, {})[engine] = tuple(uri for p in prefixes for uri in by_prefix[p])
    return files


def calls_folder(plan: Plan, store: RunStore, engine: str) -> str:
    """Where an engine's answers are written down."""
    return join(plan.config.store or store.root, "calls", plan.engines[engine])


def lines_on_reuse(plan: Plan, work: Work, before: dict[str, Any] | None) -> Iterator[str]:
    """Per stage what is there, and why what was there before cannot stay."""
    if before is None:
        return
    was = {s["name"]: s for s in before.get("stages", [])}
    for stage in plan.stages:
        there = sum(s.table.num_rows for s in plan.shards if (stage.name, s.id) in work.done)
        yield f"{stage.name}: {there} of {plan.inputs.table.num_rows} queries are there already"
        old = was.get(stage.name)
        if old is not None and old["fingerprint"] != stage.fingerprint:
            why = "; ".join(_differences(old["identity"], stage.identity)) or "what it reads changed"
            yield f"{stage.name}: runs again, because {why}"


def _differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """`settings.depth: 50 → 100` for each leaf that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(one, other, f"{path}[{i}]")
    elif old != new:
        yield f"{path}: {_short(old)} → {_short(new)}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"
