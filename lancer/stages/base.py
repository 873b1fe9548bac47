"""What a stage is, and the one caller that checks every stage's columns.

A stage is a small class: it reads some columns of the batch (one row per query), adds others, and reports ledger and
failure records. It gets its engines by name from `Engines` when it runs, so building a stage costs nothing and the plan
can build them all. Rows never vanish: each added column has one value per row of the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from lancer import schema
from lancer.digests import digest
from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.protocols import Documents, PairScorer, SearchEngine, TextEngine
from lancer.errors import PlanError
from lancer.stages.records import Failure, LedgerRecord


class Engines(Protocol):
    """Where a running stage finds its engines, by their names in the config."""

    def text(self, name: str) -> TextEngine: ...
    def scorer(self, name: str) -> PairScorer: ...
    def search(self, name: str) -> SearchEngine: ...
    def documents(self) -> Documents: ...
    def context(self, name: str) -> int | None:
        """The most tokens that a prompt of this text engine and its output have together; None = not known."""
        ...

    def tokens(self, name: str) -> ChatTokens | None:
        """Counts this text engine's tokens; None = not known. Loading it takes seconds, once per process."""
        ...


@dataclass(frozen=True)
class StageOutput:
    """What one call of a stage gives: `columns` by the names in `adds`, as Python lists, one value per row."""

    columns: Mapping[str, Sequence[object]]
    ledger: Sequence[LedgerRecord] = field(default_factory=tuple)
    failures: Sequence[Failure] = field(default_factory=tuple)


class Stage(Protocol):
    """One step from columns to columns."""

    @property
    def name(self) -> str: ...
    @property
    def reads(self) -> tuple[pa.Field, ...]: ...
    @property
    def adds(self) -> tuple[pa.Field, ...]: ...
    @property
    def engines(self) -> tuple[str, ...]:
        """Names of the engines it calls."""
        ...

    def identity(self) -> dict[str, Any]:
        """Everything of its own that can change its output, as JSON: settings, prompt, parser version.

        Engines and upstream stages are added by the plan.
        """
        ...

    def run(self, batch: pa.Table, engines: Engines) -> StageOutput: ...


def check_chain(stages: Sequence[Stage], start: pa.Schema) -> None:
    """PlanError if a stage reads a column that nothing before it adds, or one of another type, or adds one twice."""
    have = {f.name: f.type for f in start}
    origin = dict.fromkeys(have, "the requests")
    for stage in stages:
        for need in stage.reads:
            if need.name not in have:
                raise PlanError(
                    f"stage {stage.name!r} reads column {need.name!r}, which no stage before it adds; "
                    f"present: {', '.join(have)}"
                )
            if have[need.name] != need.type:
                raise PlanError(
                    f"stage {stage.name!r} reads column {need.name!r} as {need.type}, "
                    f"but {origin[need.name]} gives {have[need.name]}"
                )
        for new in stage.adds:
            if new.name in have:
                raise PlanError(
                    f"stage {stage.name!r} adds column {new.name!r}, which {origin[new.name]} gives already"
                )
            have[new.name], origin[new.name] = new.type, f"stage {stage.name!r}"


def call(stage: Stage, batch: pa.Table, engines: Engines) -> tuple[pa.Table, StageOutput]:
    """Runs a stage on a batch; returns the added columns beside `query_id`, under the pinned types, and the output.

    The stage sees what it reads, and `lancer.schema.RETRY` where the batch has it.
    A stage that breaks its own contract is a bug: TypeError or ValueError, not a row failure.
    """
    for need in stage.reads:
        if batch.schema.field(need.name).type != need.type:
            raise TypeError(f"stage {stage.name!r}: column {need.name!r} is {batch.schema.field(need.name).type}")
    names = ["query_id", *(f.name for f in stage.reads if f.name != "query_id")]
    names += [schema.RETRY.name] * (schema.RETRY.name in batch.column_names)
    output = stage.run(batch.select(names), engines)
    if set(output.columns) != {f.name for f in stage.adds}:
        raise ValueError(f"stage {stage.name!r} must add {[f.name for f in stage.adds]}, gave {sorted(output.columns)}")
    digests = input_digests(stage, batch, {failure.query_id for failure in output.failures})
    failures = [replace(failure, input_digest=digests[failure.query_id]) for failure in output.failures]
    columns: dict[str, pa.Array] = {"query_id": batch.column("query_id").combine_chunks()}
    fields = [batch.schema.field("query_id")]
    for new in stage.adds:
        values = output.columns[new.name]
        if len(values) != batch.num_rows:
            raise ValueError(f"stage {stage.name!r}: {len(values)} values of {new.name!r} for {batch.num_rows} rows")
        columns[new.name] = pa.array(values, type=new.type)
        fields.append(new)
    table = pa.table(list(columns.values()), schema=pa.schema(fields))
    return table, StageOutput(output.columns, output.ledger, failures)


def input_digests(stage: Stage, batch: pa.Table, query_ids: Collection[str]) -> dict[str, str]:
    """Identifies what failed: of each of these queries the id and the columns that the stage reads, as JSON, under
    SHA-256, 16 hex digits of it. Document ids stand for documents."""
    read = batch.select(["query_id", *(f.name for f in stage.reads if f.name != "query_id")])
    places = [i for i, query_id in enumerate(read["query_id"].to_pylist()) if query_id in query_ids]
    return {row["query_id"]: digest(row)[:16] for row in read.take(pa.array(places, pa.int64())).to_pylist()}
