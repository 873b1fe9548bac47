"""Stage estimate: every (candidate, sub-question) pair → a probability by a neural scorer (DES, coverage matrix)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from lancer import schema
from lancer.closed import Closed
from lancer.engines.protocols import Block
from lancer.evaluation.calibration_file import Calibration, read_calibration
from lancer.schema import MATRIX, CellStatus, Scale
from lancer.stages.base import Engines, StageOutput
from lancer.stages.records import Failure, LedgerRecord, of_block
from lancer.storage import Storage


class EstimateConfig(Closed):
    """Which scorer, and what it is shown as the question."""

    engine: str = "scorer"
    with_request: bool = False  # prepend the request to each sub-question
    calibration: str | None = None  # a file that `lancer calibrate` wrote


def make_estimate(config: EstimateConfig, storage: Storage) -> Estimate:
    """Reads the file that the config names. InputError: it cannot be used."""
    return Estimate(config, read_calibration(config.calibration, storage) if config.calibration else None)


class Estimate:
    """Adds `probabilities`, or what a calibration makes of them, with status per cell."""

    name = "estimate"
    reads = (schema.TEXT, schema.CANDIDATES, schema.SUB_QUESTIONS)

    def __init__(self, config: EstimateConfig, calibration: Calibration | None = None) -> None:
        self._config, self.calibration = config, calibration
        if calibration is not None:
            calibration.check_scale(Scale.probability, str(config.calibration))

    @property
    def scale(self) -> Scale:
        """Of the matrix."""
        return self.calibration.scale if self.calibration else Scale.probability

    @property
    def adds(self) -> tuple[pa.Field, ...]:
        """The matrix in its scale."""
        return (MATRIX[self.scale].values, MATRIX[self.scale].status)

    @property
    def calibration_file(self) -> str | None:
        """Where the calibration was read."""
        return self._config.calibration

    @property
    def engines(self) -> tuple[str, ...]:
        """The scorer."""
        return (self._config.engine,)

    def identity(self) -> dict[str, Any]:
        """What the scorer is shown, and the calibration."""
        calibration = self.calibration and self.calibration.digest
        return {"with_request": self._config.with_request, "calibration": calibration}

    def run(self, batch: pa.Table, engines: Engines) -> StageOutput:
        """Probabilities of shape (candidates, sub_questions) per query; the batch is one call of the scorer."""
        rows = batch.to_pylist()
        unique = sorted({c["doc_id"] for row in rows for c in row["candidates"] if c["has_text"]})
        texts = dict(zip(unique, engines.documents().texts(unique), strict=True))
        known = [[i for i, c in enumerate(row["candidates"]) if texts.get(c["doc_id"]) is not None] for row in rows]
        blocks = [
            Block(
                documents=tuple(texts[row["candidates"][i]["doc_id"]] or "" for i in rows_known),
                sub_questions=tuple(self._question(row, q) for q in row["sub_questions"]),
            )
            for row, rows_known in zip(rows, known, strict=True)
        ]
        scored = engines.scorer(self._config.engine).score(blocks)
        columns: dict[str, list[object]] = {f.name: [] for f in self.adds}
        ledger: list[LedgerRecord] = []
        failures: list[Failure] = []
        for row, rows_known, block in zip(rows, known, scored, strict=True):
            shape = (len(row["candidates"]), len(row["sub_questions"]))
            scores = block.scores.astype(np.float64)
            if self.calibration is not None:
                scores = self.calibration.apply(scores)
            values, status, failed = _cells(shape, rows_known, scores)
            columns[MATRIX[self.scale].values.name].append(values)
            columns[MATRIX[self.scale].status.name].append(status)
            ledger.append(of_block(block, query_id=row["query_id"], stage=self.name, engine=self._config.engine))
            if failed:
                detail = f"{failed} of {shape[0] * shape[1]} cells: the scorer gave no number"
                failures.append(Failure(query_id=row["query_id"], stage=self.name, reason="error", detail=detail))
        return StageOutput(columns=columns, ledger=ledger, failures=failures)

    def _question(self, row: dict[str, Any], sub_question: dict[str, str]) -> str:
        return f"{row['text']} {sub_question['text']}" if self._config.with_request else sub_question["text"]


def _cells(
    shape: tuple[int, int], known: list[int], scores: np.ndarray[Any, np.dtype[np.float64]]
) -> tuple[list[list[float | None]], list[list[str]], int]:
    n, m = shape
    values: list[list[float | None]] = [[None] * m for _ in range(n)]
    status = [[str(CellStatus.no_text)] * m for _ in range(n)]
    failed = 0
    for i, line in zip(known, scores, strict=True):
        for j, score in enumerate(line.tolist()):
            good = np.isfinite(score)
            values[i][j] = score if good else None
            status[i][j] = str(CellStatus.ok if good else CellStatus.error)
            failed += not good
    return values, status, failed
