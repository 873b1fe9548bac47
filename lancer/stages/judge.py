"""Stage judge: every (candidate, sub-question) pair → a rating 0–5 by an LLM with a rubric (LANCER, section 4).

What the model says is kept as it is; what cannot be read is null, never a number.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pydantic import Field

from lancer import schema
from lancer.closed import Closed
from lancer.engines.protocols import Generation, Message, Sampling
from lancer.prompts import judge as prompt
from lancer.schema import CellStatus
from lancer.stages.base import Engines, StageOutput
from lancer.stages.records import Failure, LedgerRecord, of_generations


class JudgeConfig(Closed):
    """How an LLM is asked for ratings."""

    engine: str = "llm"
    with_request: bool = True  # prepend the request; off for oracle sub-questions, which stand alone
    max_tokens: int = Field(3, ge=1)  # published setting
    temperature: float = Field(0.0, ge=0, le=2)
    seed: int = 0


@dataclass
class _Row:
    """One query's part of a batch: its cells, row-major, and the prompts of those that can be judged."""

    query_id: str
    shape: tuple[int, int]
    judged: list[tuple[int, int]]
    prompts: list[list[Message]]


class Judge:
    """Adds `ratings`, with status and raw output per cell."""

    name = "judge"
    reads = (schema.TEXT, schema.CANDIDATES, schema.SUB_QUESTIONS)
    adds = (schema.RATINGS, schema.RATING_STATUS, schema.RATING_RAW)
    priority = 1

    def __init__(self, config: JudgeConfig) -> None:
        self._config = config

    @property
    def engines(self) -> tuple[str, ...]:
        """The text engine."""
        return (self._config.engine,)

    def identity(self) -> dict[str, Any]:
        """Sampling, prompt and reader."""
        example = prompt.render(
            request="{request}" if self._config.with_request else None, document="{document}", sub_question="{q}"
        )
        return {
            **self._config.model_dump(mode="json", exclude={"engine"}),
            "prompt": hashlib.sha256(repr(example).encode()).hexdigest(),
            "reader": prompt.VERSION,
        }

    def run(self, batch: pa.Table, engines: Engines) -> StageOutput:
        """Ratings of shape (candidates, sub_questions) per query; all of the batch's prompts go out in one call."""
        rows = self._rows(batch, engines)
        sampling = Sampling(
            max_tokens=self._config.max_tokens,
            temperature=self._config.temperature,
            seed=self._config.seed,
            choice=prompt.CHOICES,
        )
        prompts = [p for row in rows for p in row.prompts]
        generations = engines.text(self._config.engine).generate(prompts, sampling, priority=self.priority)
        columns: dict[str, list[object]] = {f.name: [] for f in self.adds}
        ledger: list[LedgerRecord] = []
        failures: list[Failure] = []
        at = 0
        for row in rows:
            own = generations[at : at + len(row.prompts)]
            at += len(row.prompts)
            ratings, status, raw = _read(row, own)
            columns["ratings"].append(ratings)
            columns["rating_status"].append(status)
            columns["rating_raw"].append(raw)
            ledger.append(
                of_generations(
                    own,
                    query_id=row.query_id,
                    stage=self.name,
                    engine=self._config.engine,
                    pairs=sum(not g.reused for g in own),
                )
            )
            failures.extend(self._failures(row, own, status))
        return StageOutput(columns=columns, ledger=ledger, failures=failures)

    def _rows(self, batch: pa.Table, engines: Engines) -> list[_Row]:
        table = batch.to_pylist()
        unique = sorted({c["doc_id"] for row in table for c in row["candidates"] if c["has_text"]})
        texts = dict(zip(unique, engines.documents().texts(unique), strict=True))
        rows = []
        for row in table:
            judged, prompts = [], []
            for i, candidate in enumerate(row["candidates"]):
                text = texts.get(candidate["doc_id"])
                if text is None:
                    continue
                for j, sub_question in enumerate(row["sub_questions"]):
                    judged.append((i, j))
                    prompts.append(
                        prompt.render(
                            request=row["text"] if self._config.with_request else None,
                            document=text,
                            sub_question=sub_question["text"],
                        )
                    )
            shape = (len(row["candidates"]), len(row["sub_questions"]))
            rows.append(_Row(row["query_id"], shape, judged, prompts))
        return rows

    def _failures(self, row: _Row, generations: list[Generation], status: list[list[str]]) -> list[Failure]:
        counts = Counter(s for line in status for s in line)
        cells = row.shape[0] * row.shape[1]
        errors = sorted({g.error for g in generations if g.error})
        return [
            Failure(
                query_id=row.query_id,
                stage=self.name,
                reason=str(reason),
                detail=f"{counts[reason]} of {cells} cells" + (f"; e.g. {errors[0]}" if reason == "error" else ""),
            )
            for reason in (CellStatus.unreadable, CellStatus.error)
            if counts[reason]
        ]


def _read(row: _Row, generations: list[Generation]) -> tuple[list[list[int | None]], list[list[str]], list[list[str]]]:
    n, m = row.shape
    ratings: list[list[int | None]] = [[None] * m for _ in range(n)]
    status = [[str(CellStatus.no_text)] * m for _ in range(n)]
    raw = [[""] * m for _ in range(n)]
    for (i, j), generation in zip(row.judged, generations, strict=True):
        raw[i][j] = generation.text
        if generation.error:
            status[i][j] = str(CellStatus.error)
            continue
        rating = prompt.parse(generation.text)
        ratings[i][j] = rating
        status[i][j] = str(CellStatus.unreadable if rating is None else CellStatus.ok)
    return ratings, status, raw
