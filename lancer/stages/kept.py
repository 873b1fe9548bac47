"""A stage after reranking, shown only the candidates that were kept (papers/002, section 17.8: the funnel).

What the stage adds per candidate is widened again to all of them, so that the matrix of a query always has one row per
candidate: rows of the others have no value and status `not_kept`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa

from lancer import schema
from lancer.schema import CellStatus
from lancer.stages.base import Engines, Stage, StageOutput


class OfKept:
    """A stage, on the candidates that the order called `order` kept, in the order of the candidates."""

    def __init__(self, stage: Stage, order: str) -> None:
        self.stage = stage
        self._order = schema.order_field(order)
        self.name = stage.name
        self.adds: tuple[pa.Field, ...] = stage.adds
        self.engines = stage.engines

    @property
    def reads(self) -> tuple[pa.Field, ...]:
        """What the stage reads, and the order."""
        return (*self.stage.reads, self._order)

    def identity(self) -> dict[str, Any]:
        """The stage's own; what is kept comes with the order's fingerprint."""
        return self.stage.identity()

    def run(self, batch: pa.Table, engines: Engines) -> StageOutput:
        """Runs the stage on fewer candidates."""
        candidates = batch["candidates"].to_pylist()
        places = []
        for row, order in zip(candidates, batch[self._order.name].to_pylist(), strict=True):
            kept = set(order["doc_ids"][: order["kept"]])
            places.append([i for i, c in enumerate(row) if c["doc_id"] in kept])
        fewer = [[row[i] for i in own] for row, own in zip(candidates, places, strict=True)]
        at = batch.column_names.index("candidates")
        narrow = batch.drop_columns([self._order.name])
        narrow = narrow.set_column(at, schema.CANDIDATES, pa.array(fewer, schema.CANDIDATES.type))
        for column in self.stage.reads:
            if _per_cell(column.type):
                matrices = batch[column.name].to_pylist()
                cells = [[matrix[i] for i in own] for matrix, own in zip(matrices, places, strict=True)]
                narrow = narrow.set_column(narrow.column_names.index(column.name), column, pa.array(cells, column.type))
        output = self.stage.run(narrow, engines)
        columns = dict(output.columns)
        widths = [len(questions) for questions in batch["sub_questions"].to_pylist()]
        shapes = [(len(row), width) for row, width in zip(candidates, widths, strict=True)]
        for new in self.adds:
            if new == schema.CUT_CHARACTERS:
                rows = cast("Sequence[list[object]]", columns[new.name])
                columns[new.name] = [
                    [dict(zip(own, row, strict=True)).get(i) for i in range(shape[0])]
                    for row, own, shape in zip(rows, places, shapes, strict=True)
                ]
            if _per_cell(new.type):
                found = cast("Sequence[list[list[object]]]", columns[new.name])
                columns[new.name] = [
                    _widened(cells, own, shape, _filling(new))
                    for cells, own, shape in zip(found, places, shapes, strict=True)
                ]
        return StageOutput(columns, output.ledger, output.failures)


def _per_cell(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) and pa.types.is_list(kind.value_type))


def _filling(column: pa.Field) -> str | None:
    if column.name.endswith("_status"):
        return str(CellStatus.not_kept)
    return "" if pa.types.is_string(column.type.value_type.value_type) else None


def _widened(
    cells: list[list[object]], places: list[int], shape: tuple[int, int], filling: str | None
) -> list[list[object]]:
    """A matrix of all candidates from that of those at `places`."""
    wide: list[list[object]] = [[filling] * shape[1] for _ in range(shape[0])]
    for place, row in zip(places, cells, strict=True):
        wide[place] = row
    return wide
