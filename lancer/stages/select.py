"""Stage select: coverage matrix → rankings, one per selector. Needs no engine; `lancer select` does the same later."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from pydantic import AfterValidator, Field

from lancer import schema
from lancer.closed import Closed
from lancer.errors import UsageError
from lancer.schema import Scale
from lancer.selection import CoverageMatrix, parse_selector
from lancer.stages.base import Engines, StageOutput
from lancer.stages.records import LedgerRecord


def _canonical(spec: str) -> str:
    try:
        return repr(parse_selector(spec))
    except UsageError as error:
        raise ValueError(str(error)) from error


class SelectConfig(Closed):
    """Selectors as specs; the first one's ranking is `run.trec`."""

    selectors: Annotated[tuple[Annotated[str, AfterValidator(_canonical)], ...], Field(min_length=1)]


class Select:
    """Adds `rankings`, in the order of the selectors."""

    name = "select"
    adds = (schema.RANKINGS,)
    engines: tuple[str, ...] = ()

    def __init__(self, config: SelectConfig, scale: Scale) -> None:
        self._config, self.scale = config, scale
        self.selectors = tuple(parse_selector(spec) for spec in config.selectors)

    @property
    def reads(self) -> tuple[pa.Field, ...]:
        """The matrix in the scale it was declared in."""
        return (schema.CANDIDATES, schema.SUB_QUESTIONS, self._matrix)

    @property
    def _matrix(self) -> pa.Field:
        return schema.MATRIX[self.scale].values

    def identity(self) -> dict[str, Any]:
        """The selectors and the matrix they read."""
        return {"selectors": [repr(s) for s in self.selectors], "matrix": str(self.scale)}

    def run(self, batch: pa.Table, engines: Engines) -> StageOutput:
        """Complete rankings: every candidate once. Without sub-questions that is the first stage's order."""
        rankings: list[object] = []
        rows = batch.to_pylist()
        for row in rows:
            doc_ids = [c["doc_id"] for c in row["candidates"]]
            ids = [q["id"] for q in row["sub_questions"]]
            matrix = coverage_matrix(row[self._matrix.name], len(ids), self.scale)
            chosen = [(repr(s), s.select(matrix)) for s in self.selectors]
            rankings.append(
                [
                    {
                        "selector": spec,
                        "doc_ids": [doc_ids[i] for i in selection.order],
                        "covers": [[ids[j] for j in new] for new in selection.covers],
                        "uncovered": [ids[j] for j in selection.uncovered],
                    }
                    for spec, selection in chosen
                ]
            )
        return StageOutput(
            columns={"rankings": rankings},
            ledger=[LedgerRecord(query_id=row["query_id"], stage=self.name) for row in rows],
        )


def coverage_matrix(cells: list[list[float | None]], sub_questions: int, scale: Scale) -> CoverageMatrix:
    """A stored matrix (null = no value) as an array of shape (candidates, sub_questions)."""
    values = np.array([[np.nan if v is None else v for v in line] for line in cells], dtype=np.float64)
    return CoverageMatrix(values.reshape(len(cells), sub_questions), scale)
