"""The schemas that files are written under. A change here is a change of the format: raise SCHEMA_VERSION."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lancer import schema
from lancer.stages.judge import Judge, JudgeConfig

GOLDEN = Path(__file__).with_name("golden")
SCHEMAS: dict[str, pa.Schema] = {
    "input": schema.INPUT_SCHEMA,
    "ranking": schema.RANKING_SCHEMA,
    "coverage": schema.COVERAGE_SCHEMA,
    "ledger": schema.LEDGER_SCHEMA,
    "failures": schema.FAILURE_SCHEMA,
    "retrieve": pa.schema([schema.CANDIDATES]),
    "rerank": pa.schema([schema.order_field("name")]),
    "decompose": pa.schema([schema.SUB_QUESTIONS, schema.DECOMPOSE_STATUS, schema.DECOMPOSE_RAW]),
    "judge": pa.schema(Judge(JudgeConfig()).adds),
    "likelihood": pa.schema(Judge(JudgeConfig(readout="likelihood")).adds),
    "estimate": pa.schema([schema.PROBABILITIES, schema.PROBABILITY_STATUS]),
    "compress": pa.schema([schema.COMPRESSED]),
    "compressed": schema.COMPRESSED_SCHEMA,
    "select": pa.schema([schema.RANKINGS]),
}


def as_text(columns: pa.Schema) -> str:
    lines = [f"{f.name}: {f.type}{'' if f.nullable else ' not null'}" for f in columns]
    return f"version {schema.SCHEMA_VERSION}\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_as_pinned(name: str) -> None:
    assert as_text(SCHEMAS[name]) == (GOLDEN / f"{name}.schema").read_text()


def test_scales() -> None:
    assert [s.maximum for s in schema.Scale] == [5.0, 1.0]
