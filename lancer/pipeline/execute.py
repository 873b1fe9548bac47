"""One stage on one shard. Runs on a worker; knows no Ray.

A shard's columns travel from stage to stage as one Arrow table; what a stage adds is committed as a part before the
next one starts.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lancer import schema
from lancer.digests import digest
from lancer.errors import DamagedError
from lancer.pipeline.attempts import Attempts
from lancer.pipeline.isolate import call_isolating, call_one_by_one
from lancer.pipeline.journal import Journal
from lancer.pipeline.journalled import JournalledEngines
from lancer.pipeline.plan import PlannedStage
from lancer.pipeline.store import RunStore, part_table
from lancer.schema import CellStatus
from lancer.stages.base import Engines
from lancer.stages.records import QUERY_REASONS

log = logging.getLogger(__name__)

_NOT_TRIED = (CellStatus.no_text, CellStatus.not_kept, CellStatus.estimated)  # cells that a stage had no call for

SUMS: Final = ("cut_inputs", "calls", "reused_calls", "pairs", "prompt_tokens", "cached_tokens", "output_tokens")
"""Of ledger records, added up in reports and totals."""

MADE_FROM = b"lancer.made_from"  # in a part's metadata: a digest of the columns that its stage read


@dataclass
class StageReport:
    """What one stage did on one shard, for progress, limits and the closing summary."""

    stage: str
    queries: int
    reused: bool
    seconds: float = 0.0  # wall time of the call on its worker
    failures: dict[str, int] = field(default_factory=dict)  # records by reason
    failed_queries: int = 0
    cells: int = 0
    failed_cells: int = 0
    cut_documents: int = 0
    cut_inputs: int = 0
    calls: int = 0
    reused_calls: int = 0
    pairs: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For the way to the driver."""
        return asdict(self)


@dataclass(frozen=True)
class Surroundings:
    """What a stage needs on its worker beside its columns."""

    store: RunStore
    engines: Engines
    alone: Callable[[], Engines]  # the engines, with nothing else running in them
    journals: Callable[[], dict[str, Journal]]  # of the shard, by engine
    attempts: Attempts  # at the shard


def run_stage(
    stage: PlannedStage,
    table: pa.Table,
    *,
    name: str,
    there: str | None,
    redo: bool,
    at: Surroundings,
    retry: Collection[str] = (),
) -> tuple[pa.Table, StageReport]:
    """The shard's table with the stage's columns: read from its part, else computed and committed under `name`.

    `there` is the part, if there is one; with `redo`, or when it turns out to be damaged, it is replaced. `retry`: the
    queries for which what was answered before must not do again.
    """
    start = time.monotonic()
    reads = [f.name for f in stage.stage.reads if f.name != "query_id"]
    made_from = digest(table.select(["query_id", *reads]).to_pylist()).encode()
    part = None
    if there is not None and not redo:
        try:
            part = at.store.read_part(there, stage)
            if not part["query_id"].equals(table["query_id"]):
                raise DamagedError(there, "it holds other queries")
            if (part.schema.metadata or {}).get(MADE_FROM) != made_from:
                raise DamagedError(there, "it was made from other columns than are there now")
        except DamagedError as error:
            log.warning("%s; computing it again", error)
            part = None
    reused = part is not None
    if part is None:
        if there is not None:
            # First: two parts under one key would leave open which one counts, and one that must not be used again must
            # not be found again when this ends here.
            for old in at.store.find(name):
                at.store.storage.delete(old)
        part = _compute(stage, table, at, retry).replace_schema_metadata({MADE_FROM: made_from})
        at.store.write_table(name, part)
    for new in stage.stage.adds:
        table = table.append_column(new, part[new.name])
    for name in ("ledger", "failures"):
        table = _extend(table, name, part[name])
    return table, report_of(stage, part, reused=reused, seconds=time.monotonic() - start)


def _compute(stage: PlannedStage, table: pa.Table, at: Surroundings, retry: Collection[str]) -> pa.Table:
    if retry:
        again = [query_id in retry for query_id in table["query_id"].to_pylist()]
        table = table.append_column(schema.RETRY, pa.array(again))
    journals = at.journals()
    call = call_isolating
    if at.attempts.one_by_one:
        call = partial(call_one_by_one, begin=partial(at.attempts.begin_row, stage.name))
    try:
        columns, output = call(
            stage.stage,
            table,
            JournalledEngines(at.engines, journals),
            alone=lambda: JournalledEngines(at.alone(), journals),
            attempts=at.attempts.limit,
        )
    finally:
        for journal in journals.values():
            journal.close()
    return part_table(stage, columns, output)


def report_of(stage: PlannedStage, part: pa.Table, *, reused: bool, seconds: float = 0.0) -> StageReport:
    """What a part says of its stage on its shard."""
    report = StageReport(stage.name, part.num_rows, reused, seconds)
    for entries, failures in zip(part["ledger"].to_pylist(), part["failures"].to_pylist(), strict=True):
        reasons = Counter(failure["reason"] for failure in failures)
        report.failures = dict(Counter(report.failures) + reasons)
        report.failed_queries += bool(reasons.keys() & QUERY_REASONS)
        for entry in entries:
            for name in SUMS:
                setattr(report, name, getattr(report, name) + entry[name])
    if schema.CUT_CHARACTERS.name in part.column_names:
        cut = pc.list_flatten(part[schema.CUT_CHARACTERS.name])
        report.cut_documents = pc.sum(pc.greater(cut, 0)).as_py() or 0
    for name in ("rating_status", "probability_status"):
        if name in part.column_names:
            cells = pc.list_flatten(pc.list_flatten(part[name]))
            counts = {c["values"]: c["counts"] for c in pc.value_counts(cells).to_pylist()}
            report.cells = sum(n for status, n in counts.items() if status not in _NOT_TRIED)
            report.failed_cells = sum(counts.get(str(s), 0) for s in (CellStatus.unreadable, CellStatus.error))
    return report


def _extend(table: pa.Table, name: str, new: pa.ChunkedArray) -> pa.Table:
    if name not in table.column_names:
        return table.append_column(name, new)
    both = [a + b for a, b in zip(table[name].to_pylist(), new.to_pylist(), strict=True)]
    return table.set_column(table.column_names.index(name), name, pa.array(both, new.type))
