"""A run folder as another process sees it, on disk or an object store, finished or not: for `lancer status` and `cost`.

The runner leaves in `shards.parquet` which files its run consists of, so that a listing tells what is done: parts of
other settings or earlier requests lie beside them and do not count.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from lancer.config import Config
from lancer.errors import InputError, OutputError
from lancer.pipeline.finish import final_name
from lancer.pipeline.lease import DEAD_S, FOLDER, dead_here, read_session, tokens
from lancer.pipeline.named import without_digest
from lancer.pipeline.plan import Plan
from lancer.pipeline.store import RunStore, in_order
from lancer.storage import Entry, Storage, join

SHARDS: Final = "shards.parquet"

T = TypeVar("T")


def shard_table(plan: Plan, store: RunStore) -> pa.Table:
    """The content of `shards.parquet`: per shard its id, number of queries and the names of its files.

    `final` is the name in each final table, `part:<stage>` that of a stage's part below the run folder; all are without
    the digest of what is in the file.
    """
    root = store.root.rstrip("/") + "/"
    columns: dict[str, list[object]] = {
        "shard": [s.id for s in plan.shards],
        "queries": [s.table.num_rows for s in plan.shards],
        "final": [final_name(plan, s) for s in plan.shards],
    }
    for stage in plan.stages:
        columns[f"part:{stage.name}"] = [store.part(stage, s).removeprefix(root) for s in plan.shards]
    return pa.table(columns)


@dataclass(frozen=True)
class ShardFiles:
    """A shard, and the names of its files without their digests; `parts` by stage, in order."""

    id: str
    queries: int
    final: str
    parts: dict[str, str]


@dataclass(frozen=True)
class Session:
    """A session's record; when the store last took it and when it was read, in seconds since 1970 by the store's clock.

    So the clocks of the session's host and of this one, which may differ, are not compared.
    """

    token: int
    record: dict[str, Any]
    written: float
    read: float

    @property
    def seconds(self) -> float:
        """From its start to its last heartbeat."""
        return _epoch(self.record["heartbeat"]) - _epoch(self.record["started"])

    @property
    def silent_s(self) -> float:
        """Since its last heartbeat."""
        return max(0.0, self.read - self.written)

    @property
    def alive(self) -> bool:
        """Whether it still writes, by its process where that is on this host, else by its last heartbeat."""
        running = self.record.get("status") == "running" and not dead_here(self.record)
        return running and self.silent_s <= DEAD_S

    @property
    def status(self) -> str:
        """running, finished, interrupted, failed, or killed."""
        status = str(self.record.get("status"))
        return "killed" if status == "running" and not self.alive else status

    @property
    def result(self) -> dict[str, Any]:
        """What it has reported of stages and engines."""
        return self.record.get("result") or {}


@dataclass(frozen=True)
class RunFolder:
    """What `open_run` read. `record` is run.json; sessions are in order, the last one is or was the last to write."""

    store: RunStore
    record: dict[str, Any]
    config: Config
    shards: tuple[ShardFiles, ...]
    sessions: tuple[Session, ...]

    @property
    def queries(self) -> int:
        """Of the run."""
        return sum(s.queries for s in self.shards)

    @property
    def status(self) -> str:
        """running, finished, interrupted, failed, or killed."""
        if self.sessions and self.sessions[-1].alive:
            return "running"
        status = str(self.record.get("status"))
        return "killed" if status == "running" else status

    @property
    def stages(self) -> list[str]:
        """Their names, in order."""
        return [s["name"] for s in self.record["stages"]]

    def files(self, folder: str) -> dict[str, Entry]:
        """What is there below a folder, by name without digest."""
        return {without_digest(entry.uri): entry for entry in self.store.storage.list(self.store.uri(folder))}


def open_run(root: str, storage: Storage | None = None) -> RunFolder:
    """Reads what a run folder says of itself, from its store.

    InputError: no run. OutputError: written by another version. StorageError: the store does not answer.
    """
    storage = storage or Storage()
    store = RunStore(storage, join(root))
    record = store.read_json()
    if record is None:
        begun = bool(tokens(storage, store.root))
        what = "a run is only beginning here, it has no run.json yet" if begun else "is no run folder: no run.json"
        raise InputError(what, file=root)
    try:
        config = Config.model_validate(record["config"])
    except ValidationError as error:
        raise OutputError(f"{store.uri('run.json')} holds a config of another version of lancer: {error}") from None
    return RunFolder(store, record, config, _shards(store, [s["name"] for s in record["stages"]]), read_sessions(store))


def _shards(store: RunStore, stages: Sequence[str]) -> tuple[ShardFiles, ...]:
    uri = store.uri(SHARDS)
    if not store.storage.exists(uri):
        raise OutputError(f"{store.root} has no {SHARDS}: another version of lancer wrote it, or it is only beginning")
    table = pq.read_table(io.BytesIO(store.storage.read(uri)))
    if any(f"part:{stage}" not in table.column_names for stage in stages):
        raise OutputError(f"{store.root}: a run with other stages is only beginning there; try again in a moment")
    return tuple(
        ShardFiles(row["shard"], row["queries"], row["final"], {stage: row[f"part:{stage}"] for stage in stages})
        for row in table.to_pylist()
    )


def read_sessions(store: RunStore) -> tuple[Session, ...]:
    """The records of a run's sessions, in order, without those that cannot be read."""
    found = []
    now = store.storage.now(store.root)
    for entry in store.storage.list(store.uri(FOLDER)):
        name = entry.uri.rsplit("/", 1)[-1].removesuffix(".json")
        record = read_session(store.storage, store.root, int(name)) if name.isdecimal() else {}
        if record:
            found.append(Session(int(name), record, entry.modified, now))
    return tuple(found)


def read_list(store: RunStore, uri: str, column: str) -> list[dict[str, Any]]:
    """The records in a part's column `ledger` or `failures`. DamagedError: it is not what was written."""
    table = pq.read_table(io.BytesIO(store.read_checked(uri)), columns=[column])
    return [record for of_query in table[column].to_pylist() for record in of_query]


def read_all(read: Callable[[str], T], uris: Sequence[str]) -> list[T]:
    """`read` of each file, several at once, in order."""
    return list(in_order(read, uris))


def _epoch(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
