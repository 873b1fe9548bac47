"""Stage compress: the sentences of the chosen documents that an answer needs (papers/002, section 17.7).

Sentences stay as they are, in the document's order, with their places, so that an answer can cite them. They are chosen
by their similarity to the request and its sub-questions (a bi-encoder), or by an LLM that names their numbers. What
cannot be told, because an output is unreadable or an engine fails, is not left out: then the whole document stays (of
one that was asked about in parts, the part), and its status says so.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from lancer import schema
from lancer.closed import Closed
from lancer.engines.protocols import Block, Generation, Sampling
from lancer.prompts import compress as prompt
from lancer.schema import CompressStatus
from lancer.stages.base import Engines, StageOutput
from lancer.stages.extraction import Asked, ask, divide
from lancer.stages.records import Failure, LedgerRecord, of_block, of_generations
from lancer.text import sentences
from lancer.text.compression import best_sentences, joined
from lancer.text.sentences import Span, sentence_spans


class CompressConfig(Closed):
    """How many documents are compressed, by what, and with a view to what."""

    method: Literal["similarity", "llm"] = "similarity"
    engine: str = ""  # a scorer, or a text engine for llm; "" = "scorer", or "llm"
    depth: int = Field(10, ge=1)  # documents, from the top
    questions: Literal["request", "sub_questions", "both"] = "request"
    # Of similarity. Defaults of papers/002, section 17.7.2.
    sentences: int = Field(3, ge=1)  # at most, of each document
    threshold: float = Field(0.4, ge=0, le=1)  # a sentence counts by the question that it is most similar to
    # Of llm.
    structured: bool = True  # restrict the output to a list of numbers
    attempts: int = Field(2, ge=1, le=10)
    max_tokens: int = Field(128, ge=1)
    temperature: float = Field(0.0, ge=0, le=2)
    seed: int = 0

    @model_validator(mode="before")
    @classmethod
    def _engine_of_method(cls, values: Any) -> Any:
        if isinstance(values, dict) and not values.get("engine"):
            return {**values, "engine": "llm" if values.get("method") == "llm" else "scorer"}
        return values


_OF_SIMILARITY = {"sentences", "threshold"}
_OF_LLM = {"structured", "attempts", "max_tokens", "temperature", "seed"}


@dataclass
class _Document:
    """One document of a query, and what is found out about it."""

    doc_id: str
    text: str | None
    spans: list[Span]
    scores: list[float] | None = None  # of each sentence
    asked: Asked | None = None  # of an LLM

    @property
    def sentences(self) -> list[str]:
        """Their texts."""
        return [(self.text or "")[start:end] for start, end in self.spans]


@dataclass
class _Row:
    """One query's part of a batch; `request` is None where only sub-questions count."""

    query_id: str
    request: str | None
    sub_questions: list[str]
    documents: list[_Document] = field(default_factory=list)
    retry: bool = False

    @property
    def readable(self) -> list[_Document]:
        """Those with a sentence."""
        return [d for d in self.documents if d.spans]


class Compress:
    """Adds `compressed`: the top documents of the first selector, else of the last reranking, else of the first stage.

    Of a query's documents only those that reranking kept.
    """

    name = "compress"
    adds = (schema.COMPRESSED,)

    def __init__(self, config: CompressConfig, *, selected: bool, order: str | None = None) -> None:
        """`selected`: whether there are selectors. `order`: the name of the one that reranking made last."""
        self._config = config
        self._rankings = schema.RANKINGS if selected else None
        self._order = None if order is None else schema.order_field(order)

    @property
    def reads(self) -> tuple[pa.Field, ...]:
        """The request, the order of the documents, and the sub-questions if they count."""
        questions = () if self._config.questions == "request" else (schema.SUB_QUESTIONS,)
        return (schema.TEXT, *self._orders, *questions)

    @property
    def _orders(self) -> tuple[pa.Field, ...]:
        return tuple(field for field in (self._rankings, self._order) if field) or (schema.CANDIDATES,)

    @property
    def engines(self) -> tuple[str, ...]:
        """The scorer or the text engine."""
        return (self._config.engine,)

    def identity(self) -> dict[str, Any]:
        """The settings of the method, the sentence splitter, prompt and reader."""
        foreign = _OF_SIMILARITY if self._config.method == "llm" else _OF_LLM
        identity: dict[str, Any] = self._config.model_dump(mode="json", exclude={"engine", *foreign})
        identity |= {"order": self._orders[0].name, "splitter": sentences.VERSION}
        identity["sentencex"] = metadata.version("sentencex")
        if self._config.method == "llm":
            example = prompt.render(request="{r}", sub_questions=["{q}"], sentences=["{s}"], sharper=True)
            text = repr(example) + (prompt.SCHEMA if self._config.structured else "")
            identity |= {"prompt": hashlib.sha256(text.encode()).hexdigest(), "reader": prompt.VERSION}
        return identity

    def run(self, batch: pa.Table, engines: Engines) -> StageOutput:
        """Per query its first `depth` documents, in order. Without a sub-question the request counts instead."""
        rows = self._rows(batch, engines)
        score = self._extract if self._config.method == "llm" else self._compare
        ledger = score(rows, engines)
        columns = {"compressed": [[self._compressed(d) for d in row.documents] for row in rows]}
        return StageOutput(columns, ledger, [f for row in rows for f in self._failures(row)])

    def _rows(self, batch: pa.Table, engines: Engines) -> list[_Row]:
        table = batch.to_pylist()
        chosen = [self._chosen(row) for row in table]
        unique = sorted({doc_id for doc_ids in chosen for doc_id in doc_ids})
        texts = dict(zip(unique, engines.documents().texts(unique), strict=True))
        spans = {doc_id: sentence_spans(text or "") for doc_id, text in texts.items()}
        rows = []
        for row, doc_ids in zip(table, chosen, strict=True):
            questions = [q["text"] for q in row.get("sub_questions", ())]
            request = None if self._config.questions == "sub_questions" and questions else row["text"]
            documents = [_Document(doc_id, texts[doc_id], spans[doc_id]) for doc_id in doc_ids]
            retry = row.get(schema.RETRY.name, False)
            rows.append(_Row(row["query_id"], request, questions, documents, retry))
        return rows

    def _chosen(self, row: dict[str, Any]) -> list[str]:
        order = row[self._order.name] if self._order else None
        depth = self._config.depth if order is None else min(self._config.depth, order["kept"])
        if self._rankings:
            order = row[self._rankings.name][0]  # where reranking kept some, these come first
        doc_ids = [c["doc_id"] for c in row[schema.CANDIDATES.name]] if order is None else order["doc_ids"]
        return list(doc_ids[:depth])

    def _compare(self, rows: list[_Row], engines: Engines) -> list[LedgerRecord]:
        """A block per query: the sentences of its documents, each once, against its questions."""
        blocks = []
        for row in rows:
            texts = dict.fromkeys(text for d in row.readable for text in d.sentences)
            blocks.append(Block(tuple(texts), (*([row.request] if row.request else []), *row.sub_questions)))
        scored = engines.scorer(self._config.engine).score(blocks)
        ledger = []
        for row, block, result in zip(rows, blocks, scored, strict=True):
            # A sentence is as good as its best question; NaN, a failure, stays NaN.
            best = (
                dict(zip(block.documents, result.scores.max(axis=1).tolist(), strict=True)) if block.documents else {}
            )
            for document in row.readable:
                document.scores = [best[text] for text in document.sentences]
            ledger.append(of_block(result, query_id=row.query_id, stage=self.name, engine=self._config.engine))
        return ledger

    def _extract(self, rows: list[_Row], engines: Engines) -> list[LedgerRecord]:
        """All documents of the batch go out together."""
        owners, documents = [], []
        for row in rows:
            for document in row.readable:
                document.asked = Asked(row.request, row.sub_questions, document.sentences, row.retry)
                owners.append(row.query_id)
                documents.append(document.asked)
        divide(documents, engines, self._config.engine, self._config.max_tokens)
        samplings = [self._sampling(attempt) for attempt in range(1, self._config.attempts + 1)]
        ledger = []
        for attempt, calls in enumerate(ask(documents, engines, self._config.engine, samplings), start=1):
            own: dict[str, list[Generation]] = {row.query_id: [] for row in rows}
            for query_id, made in zip(owners, calls, strict=True):
                own[query_id] += made
            ledger += [
                of_generations(made, query_id=query_id, stage=self.name, engine=self._config.engine, attempt=attempt)
                for query_id, made in own.items()
                if attempt == 1 or made
            ]
        return ledger

    def _sampling(self, attempt: int) -> Sampling:
        return Sampling(
            max_tokens=self._config.max_tokens,
            temperature=self._config.temperature,
            seed=self._config.seed + attempt - 1,
            json_schema=prompt.SCHEMA if self._config.structured else None,
        )

    def _kept(self, document: _Document) -> tuple[CompressStatus, Sequence[int]]:
        """The status, and which sentences stay."""
        if not document.spans:
            return CompressStatus.no_text, ()
        if document.asked is not None:
            return document.asked.status, document.asked.kept
        scores = document.scores or []
        if not all(map(math.isfinite, scores)):
            return CompressStatus.error, range(len(document.spans))
        kept = best_sentences(scores, limit=self._config.sentences, threshold=self._config.threshold)
        return (CompressStatus.ok if kept else CompressStatus.nothing), kept

    def _compressed(self, document: _Document) -> dict[str, Any]:
        status, kept = self._kept(document)
        scores = document.scores if status == CompressStatus.ok else None
        spans = [document.spans[i] for i in kept]
        text = document.text or ""
        answers = [part.answer.text for part in document.asked.parts if part.answer] if document.asked else []
        return {
            "doc_id": document.doc_id,
            "status": str(status),
            "characters": len(text),
            "text": joined(text, spans),
            "spans": [
                {"start": s.start, "end": s.end, "score": None if scores is None else scores[i]}
                for i, s in zip(kept, spans, strict=True)
            ],
            "raw": "\n".join(answers),
        }

    def _failures(self, row: _Row) -> list[Failure]:
        status = [self._kept(d)[0] for d in row.documents]
        parts = [part for d in row.readable if d.asked for part in d.asked.parts]
        unread = [str(part.extraction.reason) for part in parts if part.unread]
        errors = [part.answer.error for part in parts if part.answer and part.answer.error]
        unknown = sum(part.extraction.unknown for part in parts)
        failed = status.count(CompressStatus.error)
        found = []
        if unread:
            reasons = ", ".join(f"{reason} {unread.count(reason)}" for reason in sorted(set(unread)))
            documents = status.count(CompressStatus.unreadable)
            found.append(("unreadable", f"{documents} of {len(row.documents)} documents, kept whole: {reasons}"))
        if failed:
            reason = "engine_error" if failed == len(row.readable) else "error"
            cause = f"e.g. {min(errors)}" if errors else "the scorer gave no number"
            found.append((reason, f"{failed} of {len(row.documents)} documents, kept whole: {cause}"))
        if unknown:
            found.append(("unknown_sentence", f"numbers that no sentence has, dropped: {unknown}"))
        attempt = max((part.attempts for part in parts), default=1)
        return [
            Failure(query_id=row.query_id, stage=self.name, attempt=attempt, reason=reason, detail=detail)
            for reason, detail in found
        ]
