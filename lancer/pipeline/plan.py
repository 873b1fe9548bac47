"""From a config and its inputs to what will run: stages with fingerprints, shards with keys, and the hardware.

A stage's fingerprint covers everything that can change its output: its own settings, prompt and reader, its engines and
their model revisions, the documents, the schema version, and the fingerprints of the stages whose columns it reads. The
key of a (stage, shard) adds the shard's input rows, so a part may be reused exactly when its key is there.

A shard is the set of queries whose hash begins with some bits, its prefix: it depends on no other query, and shards of
runs of other sizes contain one another.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lancer import schema
from lancer.config import Config
from lancer.engines.sources import DocumentSource
from lancer.engines.table import engine_identity
from lancer.errors import PlanError
from lancer.pipeline.inputs import Inputs
from lancer.stages.base import Stage, check_chain
from lancer.stages.decompose import Decompose
from lancer.stages.estimate import Estimate
from lancer.stages.judge import Judge
from lancer.stages.retrieve import Retrieve
from lancer.stages.select import Select
from lancer.storage import Storage

DOCUMENT_READERS = ("retrieve", "judge", "estimate")  # stages that look up document text


@dataclass(frozen=True)
class PlannedStage:
    """A stage and what its results depend on; `inputs` are the request columns it reads, through others too."""

    stage: Stage
    fingerprint: str
    identity: dict[str, Any]
    inputs: tuple[str, ...]

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.stage.name


@dataclass(frozen=True)
class Shard:
    """The queries whose hash begins with `id`, a string of bits, or "all"; `keys` holds one key per stage."""

    id: str
    table: pa.Table
    keys: dict[str, str]


@dataclass(frozen=True)
class Plan:
    """Everything that is known before an engine starts."""

    config: Config
    inputs: Inputs
    stages: tuple[PlannedStage, ...]
    shards: tuple[Shard, ...]
    shard_bits: int
    engines: dict[str, str]  # name → what identifies its answers

    @property
    def source(self) -> DocumentSource:
        """Where document text comes from."""
        return self.inputs.source

    @property
    def run_tag(self) -> str:
        """What was done before selection, e.g. `bm25:estimate`; the selector's repr follows it in run files."""
        first = "bm25" if self.config.retrieve.source == "bm25" else "given"
        return first if self.config.select is None else f"{first}:{'judge' if self.config.judge else 'estimate'}"

    @property
    def selectors(self) -> tuple[str, ...]:
        """The rankings of the run, by selector; the first stage's alone when nothing is selected."""
        return self.config.select.selectors if self.config.select else (schema.FIRST_STAGE,)


def build_stages(config: Config) -> tuple[Stage, ...]:
    """The stages of a run, in order; the one place that lists them."""
    stages: list[Stage] = [Retrieve(config.retrieve)]
    if config.decompose is not None:
        stages.append(Decompose(config.decompose))
    if config.judge is not None:
        stages.append(Judge(config.judge))
    if config.estimate is not None:
        stages.append(Estimate(config.estimate))
    if config.select is not None:
        stages.append(Select(config.select, config.scale))
    return tuple(stages)


def make_plan(config: Config, inputs: Inputs, storage: Storage, shard_bits: int | None = None) -> Plan:
    """`shard_bits`: of the run that goes on, so that its shards stay; a new run's follow from `shard_queries`.

    Checks the columns' chain and each tau against the scale (PlanError); fixes all fingerprints and keys."""
    stages = build_stages(config)
    check_chain(stages, schema.INPUT_SCHEMA)
    check_selectors(config)
    used = dict.fromkeys(name for stage in stages for name in stage.engines)
    engines = {name: engine_identity(config.engines[name], inputs.source, storage) for name in used}
    planned = _fingerprints(inputs.source, stages, engines)
    if shard_bits is None:
        shard_bits = max(0, math.ceil(math.log2(inputs.table.num_rows / config.shard_queries)))
    shards = _shards(inputs.table, planned, shard_bits)
    return Plan(config, inputs, planned, shards, shard_bits, {name: digest(i)[:12] for name, i in engines.items()})


def check_selectors(config: Config) -> None:
    """PlanError: a selector's tau lies outside the scale of the matrix, or it needs what a run's matrix has not."""
    if config.select is None:
        return
    for selector in Select(config.select, config.scale).selectors:
        selector.check(config.scale)
        if selector.needs:
            raise PlanError(
                f"selector {selector!r} needs {', '.join(selector.needs)}, which a run does not make; "
                "use `lancer select` with --second-order or --token-counts on its matrix"
            )


def _fingerprints(
    source: DocumentSource, stages: tuple[Stage, ...], engines: dict[str, dict[str, Any]]
) -> tuple[PlannedStage, ...]:
    inputs: dict[str, tuple[str, ...]] = {f.name: (f.name,) for f in schema.INPUT_SCHEMA}
    made_by: dict[str, str] = {}  # column → fingerprint of the stage that adds it
    planned = []
    for stage in stages:
        identity: dict[str, Any] = {
            "stage": stage.name,
            "schema": schema.SCHEMA_VERSION,
            "settings": stage.identity(),
            "engines": [engines[name] for name in stage.engines],
            "documents": source.digest if stage.name in DOCUMENT_READERS else None,
            "reads": {f.name: made_by.get(f.name, "request") for f in stage.reads},
        }
        fingerprint = digest(identity)
        columns = tuple(sorted({i for f in stage.reads for i in inputs[f.name]} | {"query_id"}))
        for new in stage.adds:
            inputs[new.name], made_by[new.name] = columns, fingerprint
        planned.append(PlannedStage(stage, fingerprint, identity, columns))
    return tuple(planned)


def _shards(table: pa.Table, stages: tuple[PlannedStage, ...], bits: int) -> tuple[Shard, ...]:
    ids = [shard_of(query_id, bits) for query_id in table.column("query_id").to_pylist()]
    rows: dict[str, list[int]] = {}
    for row, shard in enumerate(ids):
        rows.setdefault(shard, []).append(row)
    table = table.append_column(pa.field("shard", pa.string(), nullable=False), pa.array(ids, pa.string()))
    shards = []
    for shard in sorted(rows):
        own = table.take(rows[shard]).combine_chunks()
        keys = {s.name: digest([s.fingerprint, own.select(list(s.inputs)).to_pylist()])[:24] for s in stages}
        shards.append(Shard(shard, own, keys))
    return tuple(shards)


def shard_of(query_id: str, bits: int) -> str:
    """The first `bits` bits of the query's hash, as text; "all" for no bits."""
    number = int.from_bytes(hashlib.sha256(query_id.encode()).digest()[:8], "big")
    return format(number >> (64 - bits), f"0{bits}b") if bits else "all"


def overlapping(shards: Sequence[str], others: Sequence[str]) -> dict[str, list[str]]:
    """Shard → those of `others`, also of other runs, that can have queries in common with it; only where there are any.

    Prefixes in order: what begins with one stands behind it, so no shard is compared with all others.
    """
    bits = sorted("" if other == "all" else other for other in others)
    there = set(bits)
    found: dict[str, list[str]] = {}
    for shard in shards:
        own = "" if shard == "all" else shard
        wider = [own[:n] for n in range(len(own)) if own[:n] in there]
        same_or_within = bits[bisect_left(bits, own) : bisect_left(bits, own + "2")]
        if wider or same_or_within:
            found[shard] = [prefix or "all" for prefix in (*wider, *same_or_within)]
    return found


def digest(value: object) -> str:
    """sha256 of a JSON value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
