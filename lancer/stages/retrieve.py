"""Stage retrieve: request → candidates, the first stage's order.

Three sources: BM25 (a search engine), a given run, or candidate lists inside the requests. With the last two nothing
outside the given list can enter. Candidates are never changed afterwards; a candidate without document text is kept and
marked, and no later stage scores it.
"""

from __future__ import annotations

import time
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from lancer import schema
from lancer.closed import Closed
from lancer.engines.protocols import Hit
from lancer.stages.base import Engines, StageOutput
from lancer.stages.records import Failure, LedgerRecord, latencies

RequestField = Literal["title", "text", "background", "problem_statement"]


class RetrieveConfig(Closed):
    """Where candidates come from and how many are kept."""

    source: Literal["bm25", "run", "requests"] = "bm25"
    depth: int = Field(100, ge=1)
    engine: str = "bm25"  # of source bm25
    query: tuple[RequestField, ...] = ("text",)  # request fields that are searched for, of source bm25
    run: str | None = None  # a TREC run, of source run

    @model_validator(mode="after")
    def _run_given(self) -> RetrieveConfig:
        if (self.source == "run") != (self.run is not None):
            raise ValueError("`run` must be given with source 'run', and only then")
        if not self.query:
            raise ValueError("`query` needs at least one request field")
        return self


class Retrieve:
    """Adds `candidates`, at most `depth` per query."""

    name = "retrieve"
    adds = (schema.CANDIDATES,)

    def __init__(self, config: RetrieveConfig) -> None:
        self._config = config

    @property
    def reads(self) -> tuple[pa.Field, ...]:
        """The request, or the candidates given for it."""
        if self._config.source != "bm25":
            return (schema.GIVEN_CANDIDATES,)
        return (schema.TEXT, schema.TITLE, schema.BACKGROUND, schema.PROBLEM_STATEMENT)

    @property
    def engines(self) -> tuple[str, ...]:
        """The search engine, for source bm25."""
        return (self._config.engine,) if self._config.source == "bm25" else ()

    def identity(self) -> dict[str, Any]:
        """Source, depth, and the fields that are searched for."""
        own: dict[str, Any] = {"source": self._config.source, "depth": self._config.depth}
        return own | ({"query": list(self._config.query)} if self._config.source == "bm25" else {})

    def run(self, batch: pa.Table, engines: Engines) -> StageOutput:
        """Candidates with scores in first-stage order; a query without any is a failure record, not a lost row."""
        rows = batch.to_pylist()
        began = time.monotonic()
        if self._config.source == "bm25":
            hits = engines.search(self._config.engine).search([self._query(row) for row in rows], self._config.depth)
        else:
            hits = [_given(row["given_candidates"] or [], self._config.depth) for row in rows]
        seconds = (time.monotonic() - began) / len(rows)
        unique = sorted({hit.doc_id for found in hits for hit in found})
        texts = dict(zip(unique, engines.documents().texts(unique), strict=True))
        candidates = [
            [{"doc_id": h.doc_id, "score": h.score, "has_text": texts[h.doc_id] is not None} for h in found]
            for found in hits
        ]
        return StageOutput(
            columns={"candidates": candidates},
            ledger=[self._record(row["query_id"], seconds) for row in rows],
            failures=[f for row, found in zip(rows, candidates, strict=True) for f in self._failures(row, found)],
        )

    def _record(self, query_id: str, seconds: float) -> LedgerRecord:
        """A search is one batch for all rows: its time is shared among them."""
        if self._config.source != "bm25":
            return LedgerRecord(query_id=query_id, stage=self.name)
        return LedgerRecord(
            query_id=query_id,
            stage=self.name,
            engine=self._config.engine,
            calls=1,
            run_s=seconds,
            **latencies([seconds]),
        )

    def _query(self, row: dict[str, Any]) -> str:
        return " ".join(row[name] for name in self._config.query if row[name])

    def _failures(self, row: dict[str, Any], found: list[dict[str, Any]]) -> list[Failure]:
        query_id = row["query_id"]
        if not found:
            return [Failure(query_id=query_id, stage=self.name, reason="no_candidates", detail="nothing was retrieved")]
        without = [c["doc_id"] for c in found if not c["has_text"]]
        if not without:
            return []
        detail = f"{len(without)} of {len(found)} candidates have no document text, e.g. {without[0]!r}"
        return [Failure(query_id=query_id, stage=self.name, reason="no_text", detail=detail)]


def _given(candidates: list[dict[str, Any]], depth: int) -> list[Hit]:
    """Given candidates in their order; those without a score get one that keeps the order."""
    return [
        Hit(c["doc_id"], float(-rank) if c["score"] is None else c["score"])
        for rank, c in enumerate(candidates[:depth], start=1)
    ]
