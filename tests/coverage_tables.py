"""Writes parts of the tables that a run folder holds, as tests need them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lancer import schema
from lancer.schema import Scale

Cells = Sequence[tuple[str, int, str, float | None]]  # doc_id, first-stage rank, sub-question, value


def write_coverage(path: Path, query_id: str, cells: Cells, scale: Scale = Scale.probability) -> None:
    """One part of a coverage table with one query."""
    rows = [
        {
            "query_id": query_id,
            "doc_id": doc_id,
            "first_stage_rank": rank,
            "sub_question_id": question,
            "sub_question": f"{question}?",
            "rating": value if scale is Scale.rating else None,
            "probability": value if scale is Scale.probability else None,
            "status": "no_text" if value is None else "ok",
            "raw": "",
        }
        for doc_id, rank, question, value in cells
    ]
    write_table(path, rows, schema.COVERAGE_SCHEMA)


def write_ranking(path: Path, query_id: str, doc_ids: Sequence[str], selectors: Sequence[str] = ("max",)) -> None:
    """One part of a ranking table: every selector reverses the first stage's `doc_ids`."""
    rows = [
        {
            "query_id": query_id,
            "selector": selector,
            "doc_id": doc_id,
            "rank": len(doc_ids) - i,
            "score": float(i + 1),
            "first_stage_rank": i + 1,
            "covers": [],
            "kept": True,
        }
        for selector in selectors
        for i, doc_id in enumerate(doc_ids)
    ]
    write_table(path, rows, schema.RANKING_SCHEMA)


def write_table(path: Path, rows: list[dict[str, Any]], columns: pa.Schema) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=columns), path)
