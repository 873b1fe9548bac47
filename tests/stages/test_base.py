from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lancer import schema
from lancer.errors import PlanError
from lancer.stages.base import StageOutput, call, check_chain
from lancer.stages.records import Failure
from tests.scripted import Engines
from tests.stages.batches import requests

ADDED = pa.field("length", pa.int32(), nullable=False)


class Lengths:
    name = "lengths"
    reads = (schema.TEXT,)
    adds: tuple[pa.Field, ...] = (ADDED,)
    engines: tuple[str, ...] = ()
    values: list[object] | None = None

    def identity(self) -> dict[str, Any]:
        return {}

    def run(self, batch: pa.Table, engines: Any) -> StageOutput:
        assert set(batch.column_names) == {"query_id", "text"}, "a stage sees only what it reads"
        return StageOutput({"length": self.values or [len(t) for t in batch["text"].to_pylist()]})


def test_a_call_gives_the_added_columns_under_their_types() -> None:
    table, output = call(Lengths(), requests("a", "b"), Engines())
    assert table.schema == pa.schema([schema.QUERY_ID, ADDED])
    assert table.to_pylist() == [{"query_id": "a", "length": 12}, {"query_id": "b", "length": 12}]
    assert not output.failures


def test_a_failure_says_what_it_was_made_from() -> None:
    class Failing(Lengths):
        def run(self, batch: pa.Table, engines: Any) -> StageOutput:
            failed = [Failure(query_id=i, stage="lengths", reason="x", detail="") for i in ("c", "a")]
            return StageOutput(super().run(batch, engines).columns, failures=failed)

    def digests(batch: pa.Table) -> dict[str, str]:
        return {f.query_id: f.input_digest for f in call(Failing(), batch, Engines())[1].failures}

    found = digests(requests("a", "b", "c"))
    assert len(set(found.values())) == 2
    assert all(len(digest) == 16 for digest in found.values())
    assert digests(requests("c", "a", title="not read")) == found, "whatever is beside it in the batch or the request"
    assert digests(requests("a", "c", text="other")).items().isdisjoint(found.items())


def test_a_stage_that_loses_a_row_is_a_bug() -> None:
    stage = Lengths()
    stage.values = [1]
    with pytest.raises(ValueError, match=r"'lengths': 1 values of 'length' for 2 rows"):
        call(stage, requests("a", "b"), Engines())


def test_a_chain_without_a_column_is_refused() -> None:
    with pytest.raises(PlanError, match=r"stage 'lengths' reads column 'text', which no stage before it adds"):
        check_chain([Lengths()], pa.schema([schema.QUERY_ID]))


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(PlanError, match=r"reads column 'text' as string, but the requests gives int64"):
        check_chain([Lengths()], pa.schema([schema.QUERY_ID, pa.field("text", pa.int64())]))


def test_a_column_is_added_once() -> None:
    with pytest.raises(PlanError, match=r"adds column 'length', which stage 'lengths' gives already"):
        check_chain([Lengths(), Lengths()], schema.INPUT_SCHEMA)
