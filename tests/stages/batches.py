"""Batches of one row per query for the stages' tests."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lancer import schema
from lancer.stages.base import Stage

REQUEST: dict[str, Any] = {
    "text": "about towers",
    "title": None,
    "background": None,
    "problem_statement": None,
    "given_candidates": None,
    "given_sub_questions": None,
}


def requests(*query_ids: str, **fields: Any) -> pa.Table:
    return pa.Table.from_pylist([REQUEST | {"query_id": i} | fields for i in query_ids], schema=schema.INPUT_SCHEMA)


def with_matrix_inputs(stage: Stage, rows: list[dict[str, Any]]) -> pa.Table:
    """Rows of query_id, text, candidates (doc ids; a leading "-" = no text) and sub-question texts."""
    full = [
        {
            "query_id": r["query_id"],
            "text": r.get("text", "about towers"),
            "candidates": [
                {"doc_id": d.lstrip("-"), "score": float(-i), "has_text": not d.startswith("-")}
                for i, d in enumerate(r["candidates"])
            ],
            "sub_questions": [{"id": str(j), "text": q} for j, q in enumerate(r["sub_questions"], start=1)],
        }
        for r in rows
    ]
    return pa.Table.from_pylist(full, schema=pa.schema([schema.QUERY_ID, *stage.reads]))
