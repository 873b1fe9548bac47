"""The run folder: the truth about a run, on local disk or an object store.

    run.json                   resolved config, stages with fingerprints, input digests, versions, result
    parts/<stage>-<fingerprint>/shard-0101-<key>-<digest>.parquet
                               a stage's columns, ledger and failures for one shard
    ranking.parquet/ coverage.parquet/ ledger.parquet/ failures.parquet/ (compressed.parquet/)
                               tables, one part per shard
    run.trec first_stage.trec  the first selector's ranking, and where it started
    attempts/                  shards in work, while a run is under way

Every file is committed in one step. The name of a table's file holds its key, so that it may be reused exactly when a
file with that key is there, and a digest of its bytes, so that a damaged one is seen when it is read.
"""

from __future__ import annotations

import io
import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from lancer import schema
from lancer.errors import DamagedError, OutputError
from lancer.pipeline.named import is_whole, with_digest, without_digest
from lancer.pipeline.plan import PlannedStage, Shard
from lancer.stages.base import StageOutput
from lancer.storage import Storage, is_temporary, join

RANKING: Final = "ranking.parquet"
TABLES: Final = (RANKING, "coverage.parquet", "ledger.parquet", "failures.parquet")
STAGE_TABLES: Final = {"compress": "compressed.parquet"}  # of runs that have the stage
# Names below the run folder.
OURS: Final = (
    *("parts", "calls", "sessions", "attempts", "queries.parquet", "shards.parquet", "run.json", "estimate.json"),
    *TABLES,
    *STAGE_TABLES.values(),
)
READERS: Final = 16  # files read at once: an object store answers each after tens of milliseconds

S = TypeVar("S")
T = TypeVar("T")

_LEDGER = pa.field("ledger", pa.list_(pa.struct(list(schema.LEDGER_SCHEMA))), nullable=False)
_FAILURES = pa.field("failures", pa.list_(pa.struct(list(schema.FAILURE_SCHEMA))), nullable=False)


def tables_of(stages: Iterable[PlannedStage]) -> tuple[str, ...]:
    """The final tables of a run with these stages."""
    names = {stage.name for stage in stages}
    return (*TABLES, *(table for stage, table in STAGE_TABLES.items() if stage in names))


def part_schema(stage: PlannedStage) -> pa.Schema:
    """Of a stage's parts: `query_id`, the columns it adds, `ledger` and `failures`."""
    return pa.schema([schema.QUERY_ID, *stage.stage.adds, _LEDGER, _FAILURES])


def part_table(stage: PlannedStage, columns: pa.Table, output: StageOutput) -> pa.Table:
    """What one call of a stage gave, as the table that its part holds."""
    ids = columns["query_id"].to_pylist()
    target = part_schema(stage)
    for field, records in ((_LEDGER, output.ledger), (_FAILURES, output.failures)):
        by_query: dict[str, list[object]] = {i: [] for i in ids}
        for record in records:
            by_query[record.query_id].append(record.row())
        columns = columns.append_column(field, pa.array(list(by_query.values()), field.type))
    return columns.cast(target)


def parquet_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file; the same table gives the same bytes."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def in_order(call: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
    """`call` of each item, in order, `READERS` at once and no further ahead: memory does not grow with their number."""
    ahead: deque[Future[T]] = deque()
    with ThreadPoolExecutor(READERS) as readers:
        for item in items:
            ahead.append(readers.submit(call, item))
            if len(ahead) == READERS:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


@dataclass(frozen=True)
class RunStore:
    """Reads and writes one run folder."""

    storage: Storage
    root: str

    def uri(self, *names: str) -> str:
        """A file of the run."""
        return join(self.root, *names)

    def part(self, stage: PlannedStage, shard: Shard) -> str:
        """Where the part of a (stage, shard) lies, up to its digest."""
        folder = f"{stage.name}-{stage.fingerprint[:12]}"
        return self.uri("parts", folder, f"shard-{shard.id}-{shard.keys[stage.name]}")

    def parts(self, stages: tuple[PlannedStage, ...], shards: tuple[Shard, ...]) -> dict[tuple[str, str], str]:
        """(stage name, shard) → its part, for those that are there; one listing."""
        there = self.by_key(self.uri("parts"))
        found = ((stage.name, shard.id, there.get(self.part(stage, shard))) for stage in stages for shard in shards)
        return {(stage, shard): uri for stage, shard, uri in found if uri is not None}

    def by_key(self, folder: str) -> dict[str, str]:
        """Name without digest → file, of the tables below a folder."""
        return {without_digest(entry.uri): entry.uri for entry in self.storage.list(folder)}

    def read_part(self, uri: str, stage: PlannedStage) -> pa.Table:
        """A part, under its pinned schema; DamagedError as in `read_table`."""
        return self.read_table(uri, part_schema(stage))

    def find(self, name: str) -> list[str]:
        """The files under a name without digest: one, or none; more after a kill between two of them."""
        folder, _, start = name.rpartition("/")
        return [entry.uri for entry in self.storage.list(folder, f"{start}-")]

    def write_table(self, name: str, table: pa.Table) -> str:
        """Commits a Parquet file under `name` and its digest; returns where. The same table gives the same bytes."""
        data = parquet_bytes(table)
        uri = with_digest(name, data)
        self.storage.write(uri, data)
        return uri

    def read_checked(self, uri: str) -> bytes:
        """A file whose name ends in a digest; DamagedError when it is not what was written."""
        data = self.storage.read(uri)
        if not is_whole(uri, data):
            raise DamagedError(uri, f"its {len(data)} bytes have another digest than its name")
        return data

    def read_table(self, uri: str, expected: pa.Schema) -> pa.Table:
        """A Parquet file; DamagedError when it is not what was written, or has another schema."""
        table = pq.read_table(io.BytesIO(self.read_checked(uri)))
        if not table.schema.equals(expected):
            raise DamagedError(uri, "it has another schema than this version of lancer writes")
        return table

    def read_json(self) -> dict[str, Any] | None:
        """`run.json`, or None in a folder that has none."""
        uri = self.uri("run.json")
        if not self.storage.exists(uri):
            return None
        try:
            value = json.loads(self.storage.read(uri))
        except ValueError as error:
            raise OutputError(f"{uri} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise OutputError(f"{uri} is no run.json of lancer")
        return value

    def write_json(self, value: dict[str, Any]) -> None:
        """Commits `run.json`."""
        text = json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)
        self.storage.write(self.uri("run.json"), text.encode())

    def only_ours(self) -> bool:
        """Whether the folder holds nothing but what is written here; so does an empty one."""
        return all(self._is_ours(entry.uri) for entry in self.storage.list(self.root))

    def clear(self, keep: Collection[str] = ()) -> None:
        """Removes a run, but for the files `keep`: everything that is written here, and nothing else.

        With what a killed process had not finished writing.
        """
        for entry in self.storage.list(self.root, temporary=True):
            if self._is_ours(entry.uri) and entry.uri not in keep:
                self.storage.delete(entry.uri)

    def _is_ours(self, uri: str) -> bool:
        name = uri[len(self.root.rstrip("/")) + 1 :]
        return name.split("/")[0] in OURS or ("/" not in name and (name.endswith(".trec") or is_temporary(name)))
