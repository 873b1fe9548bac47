"""Run folders as a runner leaves them, made shard by shard in this process: the small run with a synthetic judge."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from lancer import schema
from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.protocols import Documents, EngineClock, PairScorer, SearchEngine, TextEngine
from lancer.engines.table import build_engine
from lancer.pipeline.finish import final_name
from lancer.pipeline.folder import SHARDS, shard_table
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.lease import read_session, session_uri, take
from lancer.pipeline.plan import Plan, Shard, make_plan
from lancer.pipeline.resume import input_record
from lancer.pipeline.store import RunStore, parquet_bytes, part_table
from lancer.stages.base import StageOutput, call
from lancer.storage import Storage
from tests.pipeline.small import small_config

JUDGED = ("estimate=null", "judge={engine: llm}", "select={selectors: [sum(tau=3)]}", "engines.llm={kind: synthetic}")


class RunMaker:
    """Makes what a run with `overrides` leaves in its output folder; inputs are in `folder`."""

    def __init__(self, folder: Path, *overrides: str, storage: Storage | None = None) -> None:
        self.config = small_config(folder, *JUDGED, *overrides)
        self.storage = storage or Storage()
        self.store = RunStore(self.storage, self.config.output)
        self.plan: Plan = make_plan(self.config, read_inputs(self.config, self.storage), self.storage)
        self.engine = build_engine(self.config.engines["llm"], self.plan.source, self.storage)

    def text(self, name: str) -> TextEngine:
        engine: TextEngine = self.engine
        return engine

    def scorer(self, name: str) -> PairScorer:
        raise NotImplementedError

    def search(self, name: str) -> SearchEngine:
        raise NotImplementedError

    def documents(self) -> Documents:
        return self.plan.source.open(self.storage)

    def context(self, name: str) -> int | None:
        return None

    def tokens(self, name: str) -> ChatTokens | None:
        return None

    def begin(self, status: str = "running") -> None:
        """run.json and shards.parquet."""
        stages = [
            {
                "name": s.name,
                "fingerprint": s.fingerprint,
                "identity": s.identity,
                "engines": dict.fromkeys(s.stage.engines, ""),
            }
            for s in self.plan.stages
        ]
        self.storage.write(self.store.uri(SHARDS), parquet_bytes(shard_table(self.plan, self.store)))
        config, inputs = self.config.model_dump(mode="json"), input_record(self.plan)
        self.store.write_json({"status": status, "config": config, "stages": stages, "inputs": inputs})

    def shard(self, shard: Shard, *, stages: int = 4, finish: bool = True) -> list[str]:
        """The parts of a shard up to some stage; after the last one also its ledger and failures. Returns the parts."""
        table, outputs, uris = shard.table, [], []
        for stage in self.plan.stages[:stages]:
            columns, output = call(stage.stage, table, self)
            uris.append(self.store.write_table(self.store.part(stage, shard), part_table(stage, columns, output)))
            outputs.append(output)
            for new in stage.stage.adds:
                table = table.append_column(new, columns[new.name])
        if finish and stages == len(self.plan.stages):
            self._finals(shard, outputs)
        return uris

    def _finals(self, shard: Shard, outputs: list[StageOutput]) -> None:
        tables = {
            "ledger.parquet": pa.Table.from_pylist([r.row() for o in outputs for r in o.ledger], schema.LEDGER_SCHEMA),
            "failures.parquet": pa.Table.from_pylist(
                [f.row() for o in outputs for f in o.failures], schema.FAILURE_SCHEMA
            ),
        }
        for folder, table in tables.items():
            self.store.write_table(self.store.uri(folder, final_name(self.plan, shard)), table)

    def session(self, *clocks: EngineClock, **changes: Any) -> int:
        """Takes the folder for this process, as a new session that has reported these clocks of `llm`."""
        lease = take(self.storage, self.store.root, lambda line: None)
        result = {"engines": {"llm": [asdict(c) for c in clocks]} if clocks else {}, "stages": []}
        self.change(lease.token, **({"result": result} | changes))
        return lease.token

    def change(self, token: int, **changes: Any) -> None:
        """Changes a session's record."""
        record = read_session(self.storage, self.store.root, token) | changes
        self.storage.write(session_uri(self.store.root, token), json.dumps(record).encode())

    @property
    def total_calls(self) -> int:
        """Of the judge, over all queries: one per pair of a candidate and a sub-question."""
        rows = self.plan.inputs.table.to_pylist()
        return sum(len(r["given_candidates"]) * len(r["given_sub_questions"] or []) for r in rows)


def ago(seconds: float) -> str:
    """A moment as in a session's record."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="milliseconds")
