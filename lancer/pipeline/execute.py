"""One stage on one shard, and a finished shard's final tables. Runs on a worker; knows no Ray.

A shard's columns travel from stage to stage as one Arrow table; what a stage adds is committed as a part before the
next one starts.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lancer import schema
from lancer.errors import DamagedError
from lancer.formats.runs import scores_for
from lancer.pipeline.isolate import call_isolating
from lancer.pipeline.journal import Journal, JournalledEngines
from lancer.pipeline.plan import PlannedStage, digest
from lancer.pipeline.store import RunStore, part_table
from lancer.schema import CellStatus, Scale
from lancer.stages.base import Engines
from lancer.stages.records import QUERY_REASONS

log = logging.getLogger(__name__)

_NOT_TRIED = (CellStatus.no_text, CellStatus.not_kept, CellStatus.estimated)  # cells that a stage had no call for

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
    attempts: int


def run_stage(
    stage: PlannedStage, table: pa.Table, *, name: str, there: str | None, redo: bool, at: Surroundings
) -> tuple[pa.Table, StageReport]:
    """The shard's table with the stage's columns: read from its part, else computed and committed under `name`.

    `there` is the part, if there is one; with `redo`, or when it turns out to be damaged, it is replaced.
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
        part = _compute(stage, table, at).replace_schema_metadata({MADE_FROM: made_from})
        at.store.write_table(name, part)
    for new in stage.stage.adds:
        table = table.append_column(new, part[new.name])
    for name in ("ledger", "failures"):
        table = _extend(table, name, part[name])
    return table, report_of(stage, part, reused=reused, seconds=time.monotonic() - start)


def _compute(stage: PlannedStage, table: pa.Table, at: Surroundings) -> pa.Table:
    journals = at.journals()
    try:
        columns, output = call_isolating(
            stage.stage,
            table,
            JournalledEngines(at.engines, journals),
            alone=lambda: JournalledEngines(at.alone(), journals),
            attempts=at.attempts,
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
            for name in ("calls", "reused_calls", "pairs", "prompt_tokens", "cached_tokens", "output_tokens"):
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


def final_tables(table: pa.Table, scale: Scale, orders: Sequence[str] = ()) -> dict[str, pa.Table]:
    """The final tables of one shard, by their names in the run folder. `orders`: those that reranking made."""
    rows = table.to_pylist()
    tables = {
        "ranking.parquet": pa.Table.from_pylist(list(_ranking(rows, orders)), schema=schema.RANKING_SCHEMA),
        "coverage.parquet": pa.Table.from_pylist(list(_coverage(rows, scale)), schema=schema.COVERAGE_SCHEMA),
        "ledger.parquet": pa.Table.from_pylist(_records(rows, "ledger"), schema=schema.LEDGER_SCHEMA),
        "failures.parquet": pa.Table.from_pylist(_records(rows, "failures"), schema=schema.FAILURE_SCHEMA),
    }
    if schema.COMPRESSED.name in table.column_names:
        tables["compressed.parquet"] = pa.Table.from_pylist(list(_compressed(rows)), schema=schema.COMPRESSED_SCHEMA)
    return tables


def _records(rows: Sequence[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [record for row in rows for record in row[name]]


def _ranking(rows: Sequence[dict[str, Any]], orders: Sequence[str]) -> Iterator[dict[str, Any]]:
    for row in rows:
        first = {c["doc_id"]: rank for rank, c in enumerate(row["candidates"], start=1)}
        for ranking in _rankings(row, orders):
            doc_ids = ranking["doc_ids"]
            scores = scores_for(len(doc_ids))
            for rank, (doc_id, score, covers) in enumerate(
                zip(doc_ids, scores, ranking["covers"], strict=True), start=1
            ):
                yield {
                    "query_id": row["query_id"],
                    "selector": ranking["selector"],
                    "doc_id": doc_id,
                    "rank": rank,
                    "score": score,
                    "first_stage_rank": first[doc_id],
                    "covers": covers,
                    "kept": doc_id in ranking["kept"],
                }


def _rankings(row: dict[str, Any], orders: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The named orders, then the selectors' rankings, or what there is without selectors; each with what was kept."""
    doc_ids = [c["doc_id"] for c in row["candidates"]]
    kept = set(doc_ids)
    last = schema.FIRST_STAGE
    for name in orders:
        order = row[schema.order_field(name).name]
        doc_ids, last = order["doc_ids"], schema.RERANK
        kept = set(doc_ids[: order["kept"]])
        yield {"selector": f"{schema.RERANK}.{name}", "doc_ids": doc_ids, "covers": [[]] * len(doc_ids), "kept": kept}
    alone = {"selector": last, "doc_ids": doc_ids, "covers": [[]] * len(doc_ids)}
    for ranking in row.get("rankings") or [alone]:
        yield ranking | {"kept": kept}


def _compressed(rows: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        for rank, document in enumerate(row[schema.COMPRESSED.name], start=1):
            yield {"query_id": row["query_id"], "rank": rank, **document}


def _coverage(rows: Sequence[dict[str, Any]], scale: Scale) -> Iterator[dict[str, Any]]:
    fields = schema.MATRIX[scale]
    for row in rows:
        cut = row.get(schema.CUT_CHARACTERS.name)
        ratings, probabilities = row.get(schema.RATINGS.name), row.get(schema.PROBABILITIES.name)  # a cascade has both
        for i, candidate in enumerate(row["candidates"]):
            for j, sub_question in enumerate(row.get("sub_questions", ())):
                if row[fields.status.name][i][j] == CellStatus.not_kept:
                    continue
                yield {
                    "query_id": row["query_id"],
                    "doc_id": candidate["doc_id"],
                    "first_stage_rank": i + 1,
                    "sub_question_id": sub_question["id"],
                    "sub_question": sub_question["text"],
                    "rating": ratings[i][j] if ratings else None,
                    "probability": probabilities[i][j] if probabilities else None,
                    "status": row[fields.status.name][i][j] or str(CellStatus.error),
                    "raw": row[fields.raw.name][i][j] if fields.raw.name in row else "",
                    "cut_characters": cut[i] if cut else None,
                }
