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
from lancer.selection import CoverageMatrix, Selection, Selector, parse_selector
from lancer.selection.reranked import select_reranked
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

    def __init__(self, config: SelectConfig, scale: Scale, order: str | None = None) -> None:
        """`order`: the name of the one that reranking made last."""
        self._config, self.scale = config, scale
        self._order = None if order is None else schema.order_field(order)
        self.selectors = tuple(parse_selector(spec) for spec in config.selectors)

    @property
    def reads(self) -> tuple[pa.Field, ...]:
        """The matrix in the scale it was declared in, and the order."""
        order = () if self._order is None else (self._order,)
        return (schema.CANDIDATES, schema.SUB_QUESTIONS, self._matrix, *order)

    @property
    def _matrix(self) -> pa.Field:
        return schema.MATRIX[self.scale].values

    def identity(self) -> dict[str, Any]:
        """The selectors and the matrix they read."""
        return {"selectors": [repr(s) for s in self.selectors], "matrix": str(self.scale)}

    def run(self, batch: pa.Table, engines: Engines) -> StageOutput:
        """Complete rankings: every candidate once. Without sub-questions that is the order so far."""
        rankings: list[object] = []
        rows = batch.to_pylist()
        for row in rows:
            doc_ids = [c["doc_id"] for c in row["candidates"]]
            ids = [q["id"] for q in row["sub_questions"]]
            matrix = coverage_matrix(row[self._matrix.name], len(ids), self.scale)
            order = None if self._order is None else row[self._order.name]
            chosen = [(repr(s), _selection(s, matrix, doc_ids, order)) for s in self.selectors]
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


def _selection(
    selector: Selector, matrix: CoverageMatrix, doc_ids: list[str], order: dict[str, Any] | None
) -> Selection:
    if order is None:
        return selector.select(matrix)
    place = {doc_id: i for i, doc_id in enumerate(doc_ids)}
    return select_reranked(selector, matrix, [place[d] for d in order["doc_ids"]], order["kept"])


def coverage_matrix(cells: list[list[float | None]], sub_questions: int, scale: Scale) -> CoverageMatrix:
    """A stored matrix (null = no value) as an array of shape (candidates, sub_questions)."""
    values = np.array([[np.nan if v is None else v for v in line] for line in cells], dtype=np.float64)
    return CoverageMatrix(values.reshape(len(cells), sub_questions), scale)
