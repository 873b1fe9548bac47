"""Stage decompose: request → sub-questions (LANCER, section 4), by an LLM or as given (oracle).

Retry rule: a query with fewer than n distinct sub-questions is asked again with the next seed at `retry_temperature`,
at most `attempts` times in all; what earlier attempts found is kept and filled up. Fewer than n in the end is `too_few`
(those found are used); none is `failed` (the first stage's order stays). A query that is retried for one of these is
asked once more whatever a journal says; what it says then takes the place of the last attempt.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from lancer import schema
from lancer.closed import Closed
from lancer.engines.protocols import Generation, Sampling
from lancer.prompts import decompose as prompt
from lancer.schema import DecomposeStatus
from lancer.stages.base import Engines, StageOutput
from lancer.stages.records import Failure, LedgerRecord, of_generations


class DecomposeConfig(Closed):
    """Where sub-questions come from, and how an LLM is asked for them."""

    source: Literal["llm", "given"] = "llm"
    path: str | None = None  # a sub-question file, of source given
    engine: str = "llm"
    n: int = Field(2, ge=1, le=50)  # 2 = published scripts
    attempts: int = Field(3, ge=1, le=10)
    max_tokens: int = Field(512, ge=1)
    temperature: float = Field(0.0, ge=0, le=2)
    retry_temperature: float = Field(0.7, ge=0, le=2)
    seed: int = 0

    @model_validator(mode="after")
    def _path_given(self) -> DecomposeConfig:
        if (self.source == "given") != (self.path is not None):
            raise ValueError("`path` must be given with source 'given', and only then")
        return self


class Decompose:
    """Adds `sub_questions`, with status and raw output."""

    name = "decompose"
    adds = (schema.SUB_QUESTIONS, schema.DECOMPOSE_STATUS, schema.DECOMPOSE_RAW)
    priority = 2  # after judging: finished queries leave first

    def __init__(self, config: DecomposeConfig) -> None:
        self._config = config

    @property
    def reads(self) -> tuple[pa.Field, ...]:
        """The request, or the sub-questions given for it."""
        if self._config.source == "given":
            return (schema.GIVEN_SUB_QUESTIONS,)
        return (schema.TEXT, schema.TITLE, schema.BACKGROUND, schema.PROBLEM_STATEMENT)

    @property
    def engines(self) -> tuple[str, ...]:
        """The text engine, for source llm."""
        return (self._config.engine,) if self._config.source == "llm" else ()

    def identity(self) -> dict[str, Any]:
        """Sampling, prompt and reader; nothing but the source when sub-questions are given."""
        if self._config.source == "given":
            return {"source": "given"}
        example = prompt.render(
            text="{text}", n=self._config.n, title="{title}", background="{b}", problem_statement="{p}"
        )
        return {
            **self._config.model_dump(mode="json", exclude={"path", "engine"}),
            "prompt": hashlib.sha256(repr(example).encode()).hexdigest(),
            "reader": prompt.VERSION,
        }

    def run(self, batch: pa.Table, engines: Engines) -> StageOutput:
        """Sub-questions with ids "1".."n", or those of the file."""
        rows = batch.to_pylist()
        if self._config.source == "given":
            return self._given(rows)
        engine = engines.text(self._config.engine)
        found: list[list[str]] = [[] for _ in rows]
        raw: list[list[str]] = [[] for _ in rows]
        ledger: list[LedgerRecord] = []
        failures: list[list[Failure]] = [[] for _ in rows]
        prompts = [
            prompt.render(n=self._config.n, **{f.name: row[f.name] for f in self.reads})  # the request's fields
            for row in rows
        ]
        for attempt in range(1, self._config.attempts + 2):
            fresh = attempt > self._config.attempts
            todo = [i for i in range(len(rows)) if len(found[i]) < self._config.n]
            todo = [i for i in todo if rows[i].get(schema.RETRY.name)] if fresh else todo
            if not todo:
                break
            sampling = replace(self._sampling(min(attempt, self._config.attempts)), fresh=fresh)
            generations = engine.generate([prompts[i] for i in todo], sampling, priority=self.priority)
            for i, generation in zip(todo, generations, strict=True):
                query_id = rows[i]["query_id"]
                if fresh and not generation.error:
                    raw[i].pop()
                    failures[i] = [f for f in failures[i] if f.attempt < self._config.attempts]
                if not (fresh and generation.error):
                    raw[i].append(generation.text)
                found[i] = self._found(raw[i])
                ledger.append(
                    of_generations(
                        [generation], query_id=query_id, stage=self.name, engine=self._config.engine, attempt=attempt
                    )
                )
                failures[i] += self._failure(query_id, attempt, generation, len(found[i]))
        return StageOutput(
            columns={
                "sub_questions": [[{"id": str(j), "text": t} for j, t in enumerate(q, start=1)] for q in found],
                "decompose_status": [str(self._status(len(q))) for q in found],
                "decompose_raw": raw,
            },
            ledger=ledger,
            failures=[failure for of_row in failures for failure in of_row],
        )

    def _found(self, raw: list[str]) -> list[str]:
        found: list[str] = []
        for text in raw:
            found = prompt.distinct([*found, *prompt.parse(text, self._config.n)], self._config.n)
        return found

    def _sampling(self, attempt: int) -> Sampling:
        temperature = self._config.temperature if attempt == 1 else self._config.retry_temperature
        return Sampling(
            max_tokens=self._config.max_tokens, temperature=temperature, seed=self._config.seed + attempt - 1
        )

    def _status(self, found: int) -> DecomposeStatus:
        if found == 0:
            return DecomposeStatus.failed
        return DecomposeStatus.ok if found == self._config.n else DecomposeStatus.too_few

    def _failure(self, query_id: str, attempt: int, generation: Generation, found: int) -> list[Failure]:
        last = attempt >= self._config.attempts
        if generation.error:
            reason, detail = "engine_error" if last and not found else "call_error", generation.error
        elif last and found < self._config.n:
            reason = "too_few" if found else "no_sub_questions"
            detail = f"{found} of {self._config.n} sub-questions after {attempt} attempts"
        else:
            return []
        return [Failure(query_id=query_id, stage=self.name, attempt=attempt, reason=reason, detail=detail)]

    def _given(self, rows: list[dict[str, Any]]) -> StageOutput:
        given = [row["given_sub_questions"] or [] for row in rows]
        return StageOutput(
            columns={
                "sub_questions": given,
                "decompose_status": [str(DecomposeStatus.given if q else DecomposeStatus.failed) for q in given],
                "decompose_raw": [[] for _ in rows],
            },
            ledger=[LedgerRecord(query_id=row["query_id"], stage=self.name) for row in rows],
            failures=[
                Failure(
                    query_id=row["query_id"],
                    stage=self.name,
                    reason="no_sub_questions",
                    detail="the sub-question file has none for this query",
                )
                for row, q in zip(rows, given, strict=True)
                if not q
            ],
        )
