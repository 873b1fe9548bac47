"""Stage compress: the sentences of the chosen documents that an answer needs (papers/002, section 17.7).

Sentences stay as they are, in the document's order, with their places, so that an answer can cite them. They are chosen
by their similarity to the request and its sub-questions (a bi-encoder), or by an LLM that names their numbers. What
cannot be told, because an output is unreadable or an engine fails, is not left out: then the whole document stays, and
its status says so.
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
from lancer.engines.protocols import Block, Generation, Message, Sampling
from lancer.prompts import compress as prompt
from lancer.prompts.compress import Extraction
from lancer.schema import CompressStatus
from lancer.stages.base import Engines, StageOutput
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
_NOT_ASKED = Extraction(None)
_OF_LLM = {"structured", "attempts", "max_tokens", "temperature", "seed"}


@dataclass
class _Document:
    """One document of a query, and what is found out about it."""

    doc_id: str
    text: str | None
    spans: list[Span]
    scores: list[float] | None = None  # of each sentence
    answer: Generation | None = None  # the last one
    extraction: Extraction = _NOT_ASKED


@dataclass
class _Row:
    """One query's part of a batch; `request` is None where only sub-questions count."""

    query_id: str
    request: str | None
    sub_questions: list[str]
    documents: list[_Document] = field(default_factory=list)

    @property
    def asked(self) -> list[_Document]:
        """Those with a sentence."""
        return [d for d in self.documents if d.spans]


class Compress:
    """Adds `compressed`: the top documents of the first selector, else of the last reranking, else of the first stage.

    Of a query's documents only those that reranking kept.
    """

    name = "compress"
    adds = (schema.COMPRESSED,)
    priority = 0  # the last stage: its queries are done next

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
            rows.append(_Row(row["query_id"], request, questions, documents))
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
            texts = dict.fromkeys(text for d in row.asked for text in _sentences(d))
            blocks.append(Block(tuple(texts), (*([row.request] if row.request else []), *row.sub_questions)))
        scored = engines.scorer(self._config.engine).score(blocks)
        ledger = []
        for row, block, result in zip(rows, blocks, scored, strict=True):
            # A sentence is as good as its best question; NaN, a failure, stays NaN.
            best = (
                dict(zip(block.documents, result.scores.max(axis=1).tolist(), strict=True)) if block.documents else {}
            )
            for document in row.asked:
                document.scores = [best[text] for text in _sentences(document)]
            ledger.append(of_block(result, query_id=row.query_id, stage=self.name, engine=self._config.engine))
        return ledger

    def _extract(self, rows: list[_Row], engines: Engines) -> list[LedgerRecord]:
        """The prompts of an attempt go out in one call; what cannot be read is asked again, more sharply."""
        engine = engines.text(self._config.engine)
        ledger = []
        for attempt in range(1, self._config.attempts + 1):
            asked = [[d for d in row.asked if _unread(d)] for row in rows]
            if attempt > 1 and not any(asked):
                break
            prompts = [_prompt(row, d, sharper=attempt > 1) for row, of in zip(rows, asked, strict=True) for d in of]
            generations = iter(engine.generate(prompts, self._sampling(attempt), priority=self.priority))
            for row, documents in zip(rows, asked, strict=True):
                own = [next(generations) for _ in documents]
                for document, answer in zip(documents, own, strict=True):
                    document.answer = answer
                    cut = answer.finish == "length"
                    document.extraction = prompt.parse(answer.text, len(document.spans), cut=cut)
                if attempt == 1 or own:
                    ledger.append(
                        of_generations(
                            own,
                            query_id=row.query_id,
                            stage=self.name,
                            engine=self._config.engine,
                            attempt=attempt,
                        )
                    )
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
        everything = range(len(document.spans))
        if not document.spans:
            return CompressStatus.no_text, ()
        if document.scores is not None:
            if not all(map(math.isfinite, document.scores)):
                return CompressStatus.error, everything
            limit, threshold = self._config.sentences, self._config.threshold
            kept: Sequence[int] = best_sentences(document.scores, limit=limit, threshold=threshold)
        elif document.answer is None or document.answer.error:
            return CompressStatus.error, everything
        elif document.extraction.kept is None:
            return CompressStatus.unreadable, everything
        else:
            kept = document.extraction.kept
        return (CompressStatus.ok if kept else CompressStatus.nothing), kept

    def _compressed(self, document: _Document) -> dict[str, Any]:
        status, kept = self._kept(document)
        scores = document.scores if status == CompressStatus.ok else None
        spans = [document.spans[i] for i in kept]
        text = document.text or ""
        return {
            "doc_id": document.doc_id,
            "status": str(status),
            "characters": len(text),
            "text": joined(text, spans),
            "spans": [
                {"start": s.start, "end": s.end, "score": None if scores is None else scores[i]}
                for i, s in zip(kept, spans, strict=True)
            ],
            "raw": document.answer.text if document.answer else "",
        }

    def _failures(self, row: _Row) -> list[Failure]:
        status = [self._kept(d)[0] for d in row.documents]
        unread = [str(d.extraction.reason) for d in row.asked if d.answer and _unread(d)]
        errors = [d.answer.error for d in row.asked if d.answer and d.answer.error]
        unknown = [d.extraction.unknown for d in row.asked if d.extraction.unknown]
        failed = status.count(CompressStatus.error)
        whole = f"of {len(row.documents)} documents, kept whole"
        found = []
        if unread:
            reasons = ", ".join(f"{reason} {unread.count(reason)}" for reason in sorted(set(unread)))
            found.append(("unreadable", f"{len(unread)} {whole}: {reasons}"))
        if failed:
            detail = f": e.g. {min(errors)}" if errors else ": the scorer gave no number"
            all_failed = failed == len(row.asked)
            found.append(("engine_error" if all_failed else "error", f"{failed} {whole}{detail}"))
        if unknown:
            found.append(("unknown_sentence", f"{sum(unknown)} numbers in {len(unknown)} documents, dropped"))
        attempt = self._config.attempts if self._config.method == "llm" else 1
        return [
            Failure(query_id=row.query_id, stage=self.name, attempt=attempt, reason=reason, detail=detail)
            for reason, detail in found
        ]


def _sentences(document: _Document) -> list[str]:
    return [(document.text or "")[start:end] for start, end in document.spans]


def _unread(document: _Document) -> bool:
    """Whether it has no readable answer; a call that failed would fail again."""
    answer = document.answer
    return answer is None or (not answer.error and document.extraction.kept is None)


def _prompt(row: _Row, document: _Document, *, sharper: bool) -> list[Message]:
    return prompt.render(
        request=row.request, sub_questions=row.sub_questions, sentences=_sentences(document), sharper=sharper
    )
