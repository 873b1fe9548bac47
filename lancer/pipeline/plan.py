"""From a config and its inputs to what will run: stages with fingerprints, shards with keys, and the hardware.

A stage's fingerprint covers everything that can change its output: its own settings, prompt and reader, its engines and
their model revisions, the documents, the schema version, and the fingerprints of the stages whose columns it reads. The
key of a (stage, shard) adds the shard's input rows, so a part may be reused exactly when its key is there.

A shard is the set of queries whose hash begins with some bits, its prefix: it depends on no other query, and shards of
runs of other sizes contain one another.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lancer import schema
from lancer.config import Config
from lancer.digests import digest
from lancer.engines.sources import DocumentSource
from lancer.engines.table import answers_identity, engine_identity
from lancer.errors import PlanError
from lancer.pipeline.inputs import Inputs
from lancer.schema import Scale
from lancer.stages.base import Stage, check_chain
from lancer.stages.compress import Compress
from lancer.stages.decompose import Decompose
from lancer.stages.estimate import Estimate, make_estimate
from lancer.stages.judge import Judge, make_judge
from lancer.stages.kept import OfKept
from lancer.stages.rerank import Rerank
from lancer.stages.retrieve import Retrieve
from lancer.stages.select import Select
from lancer.storage import Storage

DOCUMENT_READERS = ("retrieve", "rerank", "judge", "estimate", "compress")  # stages that look up document text


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
        reranked = self.step_tags[-1] if self.config.rerank else self.first_tag
        steps = [s.name for s in self.stages if s.name in (Judge.name, Estimate.name)]
        return reranked if self.config.select is None else ":".join([reranked, *steps])

    @property
    def first_tag(self) -> str:
        """Of the first stage."""
        return self.config.retrieve.tag

    @property
    def step_tags(self) -> tuple[str, ...]:
        """What was done up to each step of reranking, e.g. `bm25:bi-encoder(depth=100,keep=50)`."""
        tags = [self.first_tag]
        for step in self.config.rerank:
            tags.append(f"{tags[-1]}:{step.tag()}")
        return tuple(tags[1:])

    @property
    def scale(self) -> Scale:
        """Of the coverage matrix; of no consequence where there is none."""
        found = [scale for s in self.stages for scale, fields in schema.MATRIX.items() if fields.values in s.stage.adds]
        return found[-1] if found else Scale.rating

    @property
    def selectors(self) -> tuple[str, ...]:
        """The rankings of the run, by selector; when nothing is selected the last reranking's, or the first stage's."""
        if self.config.select is not None:
            return self.config.select.selectors
        return (schema.RERANK if self.config.rerank else schema.FIRST_STAGE,)


def build_stages(config: Config, storage: Storage) -> tuple[Stage, ...]:
    """The stages of a run, in order; the one place that lists them. Prompts and calibrations are read from their files.

    UsageError, InputError: one of those cannot be used.
    """
    stages: list[Stage] = [Retrieve(config.retrieve)]
    for i, step in enumerate(config.rerank):
        stages.append(Rerank(step, config.rerank[i - 1] if i else None))
    if config.decompose is not None:
        stages.append(Decompose(config.decompose))
    matrix: Judge | Estimate | None = None  # of both, the judge's: it reads what the estimator gives
    if config.estimate is not None:
        matrix = make_estimate(config.estimate, storage)
        stages.append(_of_kept(matrix, config))
    if config.judge is not None:
        matrix = make_judge(config.judge, storage)
        stages.append(_of_kept(matrix, config))
    if config.select is not None and matrix is not None:
        stages.append(Select(config.select, matrix.scale, config.order))
    if config.compress is not None:
        stages.append(Compress(config.compress, selected=config.select is not None, order=config.order))
    return tuple(stages)


def _of_kept(stage: Stage, config: Config) -> Stage:
    """The stage itself where reranking keeps every candidate: then its results do not depend on any order."""
    if config.order is None or not any(step.narrows for step in config.rerank):
        return stage
    return OfKept(stage, config.order)


def _inner(stage: Stage) -> Stage:
    return stage.stage if isinstance(stage, OfKept) else stage


def make_plan(config: Config, inputs: Inputs, storage: Storage, shard_bits: int | None = None) -> Plan:
    """`shard_bits`: of the run that goes on, so that its shards stay; a new run's follow from `shard_queries`.

    Checks the columns' chain and each tau against the scale (PlanError), and what calibrations were made for
    (InputError); fixes all fingerprints and keys."""
    stages = build_stages(config, storage)
    check_chain(stages, schema.INPUT_SCHEMA)
    check_selectors(stages)
    used = dict.fromkeys(name for stage in stages for name in stage.engines)
    engines = {name: engine_identity(config.engines[name], inputs.source, storage) for name in used}
    planned = _fingerprints(inputs.source, stages, engines)
    for p in planned:
        stage = _inner(p.stage)
        if isinstance(stage, Judge | Estimate) and stage.calibration is not None:
            stage.calibration.check_made_for(p.identity, str(stage.calibration_file))
    if config.judge is not None and config.judge.only is not None:
        _check_estimates(planned, str(config.judge.only.calibration))
    if shard_bits is None:
        shard_bits = max(0, math.ceil(math.log2(inputs.table.num_rows / config.shard_queries)))
    shards = _shards(inputs.table, planned, shard_bits)
    answers = {name: digest(answers_identity(identity))[:12] for name, identity in engines.items()}
    return Plan(config, inputs, planned, shards, shard_bits, answers)


def _check_estimates(stages: Sequence[PlannedStage], path: str) -> None:
    """InputError: the map from estimates to ratings was made for another estimator."""
    by_name = {s.name: s for s in stages}
    judge = _inner(by_name[Judge.name].stage)
    if isinstance(judge, Judge) and judge.estimates is not None:
        judge.estimates.check_made_for(by_name[Estimate.name].identity, path)


def check_selectors(stages: Sequence[Stage]) -> None:
    """PlanError: a selector's tau lies outside the scale of the matrix, or it needs what a run's matrix has not."""
    has_order = any(isinstance(s, Rerank) for s in stages)
    for stage, selector in ((s, selector) for s in stages if isinstance(s, Select) for selector in s.selectors):
        selector.check(stage.scale)
        lacking = [need for need in selector.needs if need != "second_order" or not has_order]
        if lacking:
            raise PlanError(
                f"selector {selector!r} needs {', '.join(lacking)}, which this run does not make; a second order comes "
                "from `rerank`, or use `lancer select` with --second-order or --token-counts on its matrix"
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
            "documents": source.digest if stage.name.split(".")[0] in DOCUMENT_READERS else None,
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
