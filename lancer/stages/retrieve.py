"""Stage retrieve: request → candidates, the first stage's order.

Five sources: BM25 (a search engine), dense retrieval (a bi-encoder over the whole corpus, exact), both fused by
reciprocal rank, a given run, or candidate lists inside the requests. With the last two nothing outside the given list
can enter. Candidates are never changed afterwards; a candidate without document text is kept and marked, and no later
stage scores it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from lancer import schema
from lancer.closed import Closed
from lancer.engines.protocols import Hit, Hits
from lancer.stages.base import Engines, StageOutput
from lancer.stages.fusion import RRF_K, reciprocal_rank_fusion
from lancer.stages.records import Failure, LedgerRecord, latencies
from lancer.text.request_fields import RequestField, query_of

FUSED_DEPTH: Final = 1000  # of each list that is fused: what is deep in one may be high in the other


class RetrieveConfig(Closed):
    """Where candidates come from and how many are kept."""

    source: Literal["bm25", "dense", "rrf", "run", "requests"] = "bm25"
    depth: int = Field(100, ge=1)
    engine: str = "bm25"  # of source bm25, dense or rrf
    dense_engine: str = "dense"  # beside `engine`, of source rrf
    query: tuple[RequestField, ...] = ("text",)  # request fields that are searched for
    run: str | None = None  # a TREC run, of source run

    @model_validator(mode="after")
    def _run_given(self) -> RetrieveConfig:
        if (self.source == "run") != (self.run is not None):
            raise ValueError("`run` must be given with source 'run', and only then")
        if not self.query:
            raise ValueError("`query` needs at least one request field")
        return self

    @property
    def searchers(self) -> tuple[str, ...]:
        """The engines that search; () where candidates are given."""
        if self.source in ("bm25", "dense"):
            return (self.engine,)
        return (self.engine, self.dense_engine) if self.source == "rrf" else ()

    @property
    def dense(self) -> str | None:
        """The one of them that is a bi-encoder."""
        return self.searchers[-1] if self.source in ("dense", "rrf") else None

    @property
    def tag(self) -> str:
        """For run files."""
        return {"bm25": "bm25", "dense": "dense", "rrf": "rrf(bm25,dense)"}.get(self.source, "given")


class Retrieve:
    """Adds `candidates`, at most `depth` per query."""

    name = "retrieve"
    adds = (schema.CANDIDATES,)

    def __init__(self, config: RetrieveConfig) -> None:
        self._config = config

    @property
    def reads(self) -> tuple[pa.Field, ...]:
        """The request, or the candidates given for it."""
        if not self._config.searchers:
            return (schema.GIVEN_CANDIDATES,)
        return (schema.TEXT, schema.TITLE, schema.BACKGROUND, schema.PROBLEM_STATEMENT)

    @property
    def engines(self) -> tuple[str, ...]:
        """Those that search."""
        return self._config.searchers

    def identity(self) -> dict[str, Any]:
        """Source, depth, the fields that are searched for, and how lists are fused."""
        own: dict[str, Any] = {"source": self._config.source, "depth": self._config.depth}
        if self._config.searchers:
            own["query"] = list(self._config.query)
        return own | ({"rrf": [RRF_K, FUSED_DEPTH]} if self._config.source == "rrf" else {})

    def run(self, batch: pa.Table, engines: Engines) -> StageOutput:
        """Candidates with scores in first-stage order; a query without any is a failure record, not a lost row."""
        rows = batch.to_pylist()
        seconds: dict[str, float] = {}
        lists: list[list[list[Hit]]] = []
        depth = self._config.depth if len(self._config.searchers) < 2 else max(self._config.depth, FUSED_DEPTH)
        for engine in self._config.searchers:
            began = time.monotonic()
            lists.append(engines.search(engine).search([query_of(row, self._config.query) for row in rows], depth))
            seconds[engine] = (time.monotonic() - began) / len(rows)
        if not lists:
            hits = [_given(row["given_candidates"] or [], self._config.depth) for row in rows]
        elif len(lists) == 1:
            hits = lists[0]
        else:
            hits = [reciprocal_rank_fusion(found)[: self._config.depth] for found in zip(*lists, strict=True)]
        unique = sorted({hit.doc_id for found in hits for hit in found})
        texts = dict(zip(unique, engines.documents().texts(unique), strict=True))
        candidates = [
            [{"doc_id": h.doc_id, "score": h.score, "has_text": texts[h.doc_id] is not None} for h in found]
            for found in hits
        ]
        return StageOutput(
            columns={"candidates": candidates},
            ledger=[
                record
                for i, row in enumerate(rows)
                for record in self._records(row["query_id"], seconds, [found[i] for found in lists])
            ],
            failures=[f for row, found in zip(rows, candidates, strict=True) for f in self._failures(row, found)],
        )

    def _records(self, query_id: str, seconds: dict[str, float], found: Sequence[list[Hit]]) -> list[LedgerRecord]:
        """One per engine. A search is one batch for all rows: its time is shared among them."""
        if not seconds:
            return [LedgerRecord(query_id=query_id, stage=self.name)]
        return [
            LedgerRecord(
                query_id=query_id,
                stage=self.name,
                engine=engine,
                calls=1,
                prompt_tokens=hits.tokens if isinstance(hits, Hits) else 0,
                run_s=spent,
                **latencies([spent]),
            )
            for (engine, spent), hits in zip(seconds.items(), found, strict=True)
        ]

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
