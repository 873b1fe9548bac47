"""Stage rerank: candidates → a named order of them, by one method of `lancer.reranking` (papers/002, DES).

The config key `rerank` is one step or a list of steps, a funnel; each is a stage of its own, `rerank.<name>`, whose
name is the method's unless the step has one. A step takes the first `depth` of what the step before kept (of the
candidates, if it is the first), puts them in a new order, and lets the others follow as they were. Candidates without
text come after those that were compared. `keep`, or a score threshold, says how many of the first are kept; the
others stay behind them. The candidates themselves never change.

What is left in the run folder, for whoever reads it:

    parts/rerank.<name>-…      column `order.<name>`: doc_ids (all candidates), scores, kept, raw
    ranking.parquet            rows of selector `rerank.<name>`: all candidates by rank, `kept` for those that go on
    run.<name>.trec            the kept documents alone, in this order; the tag says what was done up to here
    run.trec                   without `select`: the last step's order of all candidates (selector `rerank`)

Later stages see the kept candidates only (`lancer.stages.kept`); selectors break ties by the last order, and take it as
`second` (`lancer.selection.reranked`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lancer import schema
from lancer.engines.protocols import Generation, Sampling, ScoredBlock, TextEngine
from lancer.prompts.message import Message
from lancer.reranking.base import ByModel, ByScorer, Conversation, Reranked, RerankStep
from lancer.reranking.rounds import hold, noting, together
from lancer.stages.base import Engines, StageOutput
from lancer.stages.records import Failure, LedgerRecord, of_block, of_generations
from lancer.stages.shown import shown
from lancer.text import sentences
from lancer.text.request_fields import query_of

REQUEST: Final = {f.name: f for f in (schema.TEXT, schema.TITLE, schema.BACKGROUND, schema.PROBLEM_STATEMENT)}


@dataclass
class _Row:
    """One query: `order` is of all candidates so far, `places` are those in it that are compared."""

    query_id: str
    query: str
    doc_ids: list[str]
    kept: int
    places: list[int]
    texts: list[str]
    retry: bool
    answers: list[Generation] = field(default_factory=list)
    block: ScoredBlock | None = None
    cut: int = 0  # of `texts`, those that an LLM was not shown whole
    result: Reranked = field(default_factory=lambda: Reranked([]))


class Rerank:
    """Adds `order.<name>`."""

    priority = 2  # before judging in the run, so after it in an engine that both use: finished queries leave first

    def __init__(self, step: RerankStep, before: RerankStep | None = None) -> None:
        self._step, self._before = step, before
        self.name = f"{schema.RERANK}.{step.order_name}"
        self.adds = (schema.order_field(step.order_name),)

    @property
    def reads(self) -> tuple[pa.Field, ...]:
        """The request's fields that documents are compared with, the candidates, the order so far."""
        order = () if self._before is None else (schema.order_field(self._before.order_name),)
        return (*(REQUEST[name] for name in self._step.query), schema.CANDIDATES, *order)

    @property
    def engines(self) -> tuple[str, ...]:
        """The scorer or text engine."""
        return (self._step.engine,)

    def identity(self) -> dict[str, Any]:
        """Of the step, and of an LLM's how documents are cut."""
        identity = self._step.identity()
        if isinstance(self._step, ByModel):
            identity |= {"splitter": sentences.VERSION, "sentencex": metadata.version("sentencex")}
        return identity

    def run(self, batch: pa.Table, engines: Engines) -> StageOutput:
        """Complete orders: every candidate once."""
        rows = self._rows(batch, engines)
        if isinstance(self._step, ByScorer):
            self._score(self._step, rows, engines)
        elif isinstance(self._step, ByModel):
            self._ask(self._step, rows, engines)
        return StageOutput(
            columns={self.adds[0].name: [self._order(row) for row in rows]},
            ledger=[self._record(row) for row in rows],
            failures=[f for row in rows for f in self._failures(row)],
        )

    def _rows(self, batch: pa.Table, engines: Engines) -> list[_Row]:
        table = batch.to_pylist()
        before = [self._so_far(row) for row in table]
        near = [doc_ids[: min(kept, self._step.depth)] for doc_ids, kept in before]
        with_text = {c["doc_id"] for row in table for c in row["candidates"] if c["has_text"]}
        unique = sorted({d for doc_ids in near for d in doc_ids} & with_text)
        texts = dict(zip(unique, engines.documents().texts(unique), strict=True))
        rows = []
        for row, (doc_ids, kept), compared in zip(table, before, near, strict=True):
            known = [(i, text) for i, d in enumerate(compared) if (text := texts.get(d)) is not None]
            query = query_of(row, self._step.query)
            places, own = [i for i, _ in known], [text for _, text in known]
            retry = row.get(schema.RETRY.name, False)
            rows.append(_Row(row["query_id"], query, doc_ids, kept, places, own, retry))
        return rows

    def _so_far(self, row: dict[str, Any]) -> tuple[list[str], int]:
        if self._before is None:
            return [c["doc_id"] for c in row["candidates"]], len(row["candidates"])
        order = row[schema.order_field(self._before.order_name).name]
        return order["doc_ids"], order["kept"]

    def _score(self, step: ByScorer, rows: Sequence[_Row], engines: Engines) -> None:
        """The shard's queries are one call of the scorer."""
        asked = [row for row in rows if row.texts]
        if not asked:
            return
        blocks = [step.block(row.query, row.texts) for row in asked]
        for row, block in zip(asked, engines.scorer(step.engine).score(blocks), strict=True):
            row.block, row.result = block, step.reranked(block.scores.astype(np.float64))

    def _ask(self, step: ByModel, rows: Sequence[_Row], engines: Engines) -> None:
        """The shard's queries go on together, so that the engine is full.

        A query that is retried for answers that could not be read is asked everything again: what is asked depends on
        what was answered.
        """
        engine = engines.text(step.engine)
        for retry in (False, True):
            asked = [row for row in rows if row.texts and row.retry == retry]
            conversations = []
            for row in asked:
                texts, row.cut = shown(step, row.query, row.texts, engines)
                conversation = _numbered(step.rerank(row.query, texts), row.query_id)
                conversations.append(noting(conversation, row.answers))
            ask = partial(self._generate, engine, replace(step.sampling(), fresh=retry))
            for row, result in zip(asked, hold(together(conversations), ask), strict=True):
                row.result = result

    def _generate(self, engine: TextEngine, sampling: Sampling, prompts: list[list[Message]]) -> list[Generation]:
        return engine.generate(prompts, sampling, priority=self.priority)

    def _order(self, row: _Row) -> dict[str, Any]:
        """The compared ones in their new order, those near them without text, then all others as they were."""
        first = [row.places[i] for i in row.result.order]
        chosen = set(first)
        places = first + [i for i in range(len(row.doc_ids)) if i not in chosen]
        scores: dict[int, float | None] = {}
        if row.result.scores is not None:
            pairs = zip(row.places, row.result.scores.tolist(), strict=True)
            scores = {i: score if np.isfinite(score) else None for i, score in pairs}
        return {
            "doc_ids": [row.doc_ids[i] for i in places],
            "scores": [scores.get(i) for i in places],
            "kept": self._kept(row, [scores.get(i) for i in first]),
            "raw": [answer.text for answer in row.answers],
        }

    def _kept(self, row: _Row, scores: Sequence[float | None]) -> int:
        kept = min(row.kept, self._step.keep or row.kept)
        least = self._step.least
        return kept if least is None else min(kept, sum(s is not None and s >= least for s in scores))

    def _record(self, row: _Row) -> LedgerRecord:
        engine = self._step.engine
        if row.block is not None:
            return of_block(row.block, query_id=row.query_id, stage=self.name, engine=engine)
        pairwise = isinstance(self._step, ByModel) and self._step.pairwise
        pairs = sum(not answer.reused for answer in row.answers) if pairwise else 0
        record = of_generations(row.answers, query_id=row.query_id, stage=self.name, engine=engine, pairs=pairs)
        return replace(record, cut_inputs=row.cut)

    def _failures(self, row: _Row) -> list[Failure]:
        faults = Counter({fault: count for fault, count in row.result.faults.items() if count})
        found = []
        if errors := faults.pop("error", 0):
            reasons = [answer.error for answer in row.answers if answer.error]
            total = len(row.answers) or len(row.texts)
            what = f"{errors} of {total} calls: {min(reasons)}" if reasons else f"{errors} of {total} pairs: no number"
            found.append(self._failure(row, "engine_error" if errors == total else "call_error", what))
        if unreadable := faults.pop("unreadable", 0):
            what = f"{unreadable} of {len(row.answers)} answers"
            found.append(self._failure(row, "unreadable", what))
        if faults:
            what = ", ".join(f"{fault} {count}" for fault, count in sorted(faults.items()))
            found.append(self._failure(row, "malformed", f"document numbers in {len(row.answers)} answers: {what}"))
        return found

    def _failure(self, row: _Row, reason: str, detail: str) -> Failure:
        return Failure(query_id=row.query_id, stage=self.name, reason=reason, detail=detail)


def _numbered(conversation: Conversation, query_id: str) -> Conversation:
    """The same; each prompt is marked with its number among those about the query, by which recorded answers go."""
    number = 0
    try:
        prompts = next(conversation)
        while True:
            for prompt in prompts:
                prompt[-1]["call"] = (query_id, number)
                number += 1
            prompts = conversation.send((yield prompts))
    except StopIteration as end:
        result: Reranked = end.value
        return result
