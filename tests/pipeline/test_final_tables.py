"""The final tables of a shard say what its rows say: one row per document, cell, record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lancer import schema
from lancer.pipeline.final_tables import final_tables
from lancer.pipeline.store import TABLES
from lancer.schema import Scale
from lancer.stages.records import Failure

LEDGER = pa.field("ledger", pa.list_(pa.struct(list(schema.LEDGER_SCHEMA))), nullable=False)
FAILURES = pa.field("failures", pa.list_(pa.struct(list(schema.FAILURE_SCHEMA))), nullable=False)
BASE = [schema.QUERY_ID, schema.CANDIDATES, LEDGER, FAILURES]
MATRICES = {
    Scale.rating: [schema.RATINGS, schema.RATING_STATUS, schema.RATING_RAW],
    Scale.probability: [schema.PROBABILITIES, schema.PROBABILITY_STATUS, schema.PROBABILITY_RAW],
}


@st.composite
def rows(draw: st.DrawFn, scale: Scale) -> list[dict[str, Any]]:
    """Queries with 0 to 4 candidates, 0 to 3 sub-questions and one or two rankings."""
    drawn = []
    for number in range(draw(st.integers(1, 4))):
        documents = draw(st.permutations(["a", "b", "c", "d"]))[: draw(st.integers(0, 4))]
        ids = [str(j) for j in range(1, draw(st.integers(0, 3)) + 1)]

        def matrix(cell: st.SearchStrategy[Any], n: int = len(documents), m: int = len(ids)) -> list[list[Any]]:
            return [[draw(cell) for _ in range(m)] for _ in range(n)]

        row: dict[str, Any] = {
            "query_id": f"q{number}",
            "candidates": [{"doc_id": d, "score": 1.0, "has_text": True} for d in documents],
            "sub_questions": [{"id": i, "text": f"why {i}?"} for i in ids],
            "rankings": [
                {
                    "selector": selector,
                    "doc_ids": draw(st.permutations(documents)),
                    "covers": [draw(st.sampled_from([[], ["1"], ["1", "2"]])) for _ in documents],
                    "uncovered": [],
                }
                for selector in ("max", "sum(tau=1)")[: draw(st.integers(1, 2))]
            ],
            "ledger": [],
            "failures": [
                Failure(query_id=f"q{number}", stage="judge", attempt=2, reason="error", detail="why").row()
                for _ in range(draw(st.integers(0, 2)))
            ],
        }
        names = [f.name for f in MATRICES[scale]]
        row[names[0]] = matrix(st.sampled_from([None, 0.0, 1.0]))
        row[names[1]] = matrix(st.sampled_from(["ok", "", "no_text", "not_kept"]))
        row[names[2]] = matrix(st.sampled_from(["", "1", "drei"]))
        row["cut_characters"] = draw(st.sampled_from([[], [7] * len(documents)]))
        drawn.append(row)
    return drawn


def cells(of: list[dict[str, Any]], scale: Scale) -> Iterator[dict[str, Any]]:
    """The coverage table, row by row."""
    value, status, raw = (f.name for f in MATRICES[scale])
    rated = scale is Scale.rating
    for row in of:
        for i, candidate in enumerate(row["candidates"]):
            for j, question in enumerate(row["sub_questions"]):
                if row[status][i][j] == "not_kept":
                    continue
                yield {
                    "query_id": row["query_id"],
                    "doc_id": candidate["doc_id"],
                    "first_stage_rank": i + 1,
                    "sub_question_id": question["id"],
                    "sub_question": question["text"],
                    "rating": row[value][i][j] if rated else None,
                    "probability": None if rated else row[value][i][j],
                    "status": row[status][i][j] or "error",
                    "raw": row[raw][i][j],
                    "cut_characters": row["cut_characters"][i] if row["cut_characters"] else None,
                }


def ranks(of: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The ranking table, row by row."""
    for row in of:
        first = [c["doc_id"] for c in row["candidates"]]
        for ranking in row["rankings"]:
            for rank, (doc_id, covers) in enumerate(zip(ranking["doc_ids"], ranking["covers"], strict=True), start=1):
                yield {
                    "query_id": row["query_id"],
                    "selector": ranking["selector"],
                    "doc_id": doc_id,
                    "rank": rank,
                    "score": float(len(first) - rank + 1),
                    "first_stage_rank": first.index(doc_id) + 1,
                    "covers": covers,
                    "kept": True,
                }


@pytest.mark.parametrize("scale", list(Scale))
@settings(max_examples=60)
@given(data=st.data())
def test_tables_hold_what_the_rows_hold(scale: Scale, data: st.DataObject) -> None:
    of = data.draw(rows(scale))
    target = pa.schema([*BASE, schema.SUB_QUESTIONS, schema.RANKINGS, schema.CUT_CHARACTERS, *MATRICES[scale]])
    table = pa.Table.from_pylist(of, schema=target)
    skipped = data.draw(st.integers(0, 1)) if len(of) > 1 else 0  # what is left is a slice of the columns
    found = final_tables(table.slice(skipped), scale)
    assert tuple(found) == TABLES
    assert found["ranking.parquet"].equals(
        pa.Table.from_pylist(list(ranks(of[skipped:])), schema=schema.RANKING_SCHEMA)
    )
    assert found["coverage.parquet"].equals(
        pa.Table.from_pylist(list(cells(of[skipped:], scale)), schema=schema.COVERAGE_SCHEMA)
    )
    assert found["failures.parquet"].to_pylist() == [f for row in of[skipped:] for f in row["failures"]]
    assert found["ledger.parquet"].num_rows == 0


def test_without_a_selection_the_ranking_is_the_first_stage() -> None:
    candidates = [{"doc_id": d, "score": 1.0, "has_text": True} for d in "ba"]
    row = {"query_id": "q", "candidates": candidates, "ledger": [], "failures": []}
    found = final_tables(pa.Table.from_pylist([row], schema=pa.schema(BASE)), Scale.rating)
    ranking = found["ranking.parquet"].to_pylist()
    assert [(r["selector"], r["doc_id"], r["rank"], r["first_stage_rank"]) for r in ranking] == [
        (schema.FIRST_STAGE, "b", 1, 1),
        (schema.FIRST_STAGE, "a", 2, 2),
    ]
    assert [r["covers"] for r in ranking] == [[], []]
    assert found["coverage.parquet"].num_rows == 0
