"""Stage judge: every (candidate, sub-question) pair → a rating 0–5 by an LLM with a rubric (LANCER, section 4).

What the model says is kept as it is; what cannot be read is null, never a number.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field

from lancer import schema
from lancer.closed import Closed
from lancer.engines.protocols import Generation, Message, Sampling
from lancer.prompts import judge as prompt
from lancer.prompts.reading import Reading, read_rating
from lancer.schema import CellStatus
from lancer.stages.base import Engines, StageOutput
from lancer.stages.records import Failure, LedgerRecord, of_generations


class JudgeConfig(Closed):
    """How an LLM is asked for ratings."""

    engine: str = "llm"
    layout: Literal["shared-prefix", "published"] = "shared-prefix"
    with_request: bool = True  # prepend the request; off for oracle sub-questions, which stand alone
    structured: bool = True  # restrict the output to the digits; off = free text, so that refusals show
    attempts: int = Field(2, ge=1, le=10)
    max_tokens: int = Field(3, ge=1)  # published setting
    temperature: float = Field(0.0, ge=0, le=2)
    seed: int = 0


@dataclass
class _Row:
    """One query's part of a batch: its cells, row-major, and what is asked for those that can be judged."""

    query_id: str
    shape: tuple[int, int]
    pairs: dict[tuple[int, int], tuple[str, str]]  # cell → (document, sub-question)
    request: str | None
    answers: dict[tuple[int, int], Generation] = field(default_factory=dict)  # the last of each cell
    readings: dict[tuple[int, int], Reading] = field(default_factory=dict)

    def unread(self) -> list[tuple[int, int]]:
        """Cells without a rating whose call did not fail: failed ones fail again."""
        return [c for c in self.pairs if c not in self.answers or self._is_unread(c)]

    def _is_unread(self, cell: tuple[int, int]) -> bool:
        return not self.answers[cell].error and self.readings[cell].value is None


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
        settings = self._config.model_dump(mode="json", exclude={"engine", "layout"})
        return settings | self._layout.identity() | {"reader": prompt.VERSION}

    def run(self, batch: pa.Table, engines: Engines) -> StageOutput:
        """Ratings of shape (candidates, sub_questions) per query; the prompts of an attempt go out in one call.

        What cannot be read is asked again, with a sharper prompt and the next seed, `attempts` times in all.
        """
        rows = self._rows(batch, engines)
        engine = engines.text(self._config.engine)
        ledger: list[LedgerRecord] = []
        for attempt in range(1, self._config.attempts + 1):
            asked = [row.unread() for row in rows]
            if attempt > 1 and not any(asked):
                break
            prompts = [
                self._prompt(row, cell, attempt) for row, cells in zip(rows, asked, strict=True) for cell in cells
            ]
            generations = iter(engine.generate(prompts, self._sampling(attempt), priority=self.priority))
            for row, cells in zip(rows, asked, strict=True):
                own = [next(generations) for _ in cells]
                if attempt == 1 or own:
                    ledger.append(self._record(row.query_id, attempt, own))
                for cell, generation in zip(cells, own, strict=True):
                    row.answers[cell] = generation
                    row.readings[cell] = self._read(generation)
        columns: dict[str, list[object]] = {f.name: [] for f in self.adds}
        for row in rows:
            for name, cells_of in zip(columns, _cells(row), strict=True):
                columns[name].append(cells_of)
        return StageOutput(columns, ledger, [f for row in rows for f in self._failures(row)])

    @property
    def _layout(self) -> prompt.Layout:
        return prompt.LAYOUTS[self._config.layout]

    def _prompt(self, row: _Row, cell: tuple[int, int], attempt: int) -> list[Message]:
        document, sub_question = row.pairs[cell]
        return prompt.render(
            request=row.request,
            document=document,
            sub_question=sub_question,
            layout=self._layout,
            sharper=attempt > 1,
        )

    def _sampling(self, attempt: int) -> Sampling:
        return Sampling(
            max_tokens=self._config.max_tokens,
            temperature=self._config.temperature,
            seed=self._config.seed + attempt - 1,
            choice=prompt.CHOICES if self._config.structured else None,
        )

    def _read(self, generation: Generation) -> Reading:
        # A choice of one token also ends at the token limit; there it is no sign of a number that goes on.
        cut = generation.finish == "length" and not self._config.structured
        return read_rating(generation.text, cut=cut)

    def _record(self, query_id: str, attempt: int, generations: list[Generation]) -> LedgerRecord:
        return of_generations(
            generations,
            query_id=query_id,
            stage=self.name,
            engine=self._config.engine,
            attempt=attempt,
            pairs=sum(not g.reused for g in generations),
        )

    def _rows(self, batch: pa.Table, engines: Engines) -> list[_Row]:
        table = batch.to_pylist()
        unique = sorted({c["doc_id"] for row in table for c in row["candidates"] if c["has_text"]})
        texts = dict(zip(unique, engines.documents().texts(unique), strict=True))
        rows = []
        for row in table:
            pairs = {
                (i, j): (text, sub_question["text"])
                for i, candidate in enumerate(row["candidates"])
                if (text := texts.get(candidate["doc_id"])) is not None
                for j, sub_question in enumerate(row["sub_questions"])
            }
            shape = (len(row["candidates"]), len(row["sub_questions"]))
            request = row["text"] if self._config.with_request else None
            rows.append(_Row(row["query_id"], shape, pairs, request))
        return rows

    def _failures(self, row: _Row) -> list[Failure]:
        cells = row.shape[0] * row.shape[1]
        errors = [g.error for g in row.answers.values() if g.error]
        unread = Counter(str(row.readings[c].reason) for c in row.unread())
        details = {
            CellStatus.unreadable: ", ".join(f"{reason} {count}" for reason, count in unread.most_common()),
            CellStatus.error: f"e.g. {min(errors)}" if errors else "",
        }
        counts = {CellStatus.unreadable: unread.total(), CellStatus.error: len(errors)}
        return [
            Failure(
                query_id=row.query_id,
                stage=self.name,
                attempt=self._config.attempts,
                reason=str(reason),
                detail=f"{counts[reason]} of {cells} cells: {details[reason]}",
            )
            for reason in counts
            if counts[reason]
        ]


Cells = list[list[int | None]] | list[list[str]]


def _cells(row: _Row) -> tuple[Cells, Cells, Cells]:
    """Ratings, status and raw output, each of shape (candidates, sub_questions)."""
    n, m = row.shape
    ratings: list[list[int | None]] = [[None] * m for _ in range(n)]
    status = [[str(CellStatus.no_text)] * m for _ in range(n)]
    raw = [[""] * m for _ in range(n)]
    for (i, j), generation in row.answers.items():
        raw[i][j] = generation.text
        rating = None if generation.error else row.readings[i, j].value
        ratings[i][j] = rating
        if generation.error:
            status[i][j] = str(CellStatus.error)
        else:
            status[i][j] = str(CellStatus.unreadable if rating is None else CellStatus.ok)
    return ratings, status, raw
