"""Sentences of documents that an LLM names by number: the part of stage compress that asks a text engine.

A document whose prompt would be too long for the model is asked about in parts, runs of its sentences. What cannot be
read is asked again, with a sharper prompt and the next seed, a set number of times; of a query that is retried for that
once more, whatever a journal says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from lancer.engines.protocols import Generation, Message, Sampling
from lancer.prompts import compress as prompt
from lancer.prompts.compress import Extraction
from lancer.schema import CompressStatus
from lancer.stages.base import Engines
from lancer.stages.room import surely_fits
from lancer.text.compression import runs

PRIORITY: Final = 0  # of the calls; the last stage goes first, so that queries are done


@dataclass
class Part:
    """One prompt: sentences of a document, from number `start` of the document on; the last answer and its reading.

    `attempts`: how often it was asked.
    """

    start: int
    sentences: list[str]
    answer: Generation | None = None
    attempts: int = 0
    extraction: Extraction = field(default_factory=lambda: Extraction(None))

    @property
    def unread(self) -> bool:
        """Whether it is to be asked (again): a call that failed would fail again."""
        return self.answer is None or (not self.answer.error and self.extraction.kept is None)

    @property
    def kept(self) -> list[int]:
        """Numbers in the document, from 0; all of the part's where its answer says nothing."""
        own = self.extraction.kept
        return [self.start + i for i in (range(len(self.sentences)) if own is None else own)]


@dataclass
class Asked:
    """A document in a query's prompts."""

    request: str | None
    sub_questions: list[str]
    sentences: list[str]
    retry: bool = False
    parts: list[Part] = field(default_factory=list)

    @property
    def status(self) -> CompressStatus:
        """The worst of its parts'."""
        if any(part.answer is None or part.answer.error for part in self.parts):
            return CompressStatus.error
        if any(part.unread for part in self.parts):
            return CompressStatus.unreadable
        return CompressStatus.ok if self.kept else CompressStatus.nothing

    @property
    def kept(self) -> list[int]:
        """Numbers of sentences, from 0."""
        return [i for part in self.parts for i in part.kept]

    def messages(self, sentences: Sequence[str], *, sharper: bool) -> list[Message]:
        """The prompt about some of its sentences."""
        return prompt.render(
            request=self.request, sub_questions=self.sub_questions, sentences=sentences, sharper=sharper
        )


def divide(documents: Sequence[Asked], engines: Engines, engine: str, output_tokens: int) -> None:
    """Gives each document its parts: one, unless its prompt and the output are too long for the model."""
    context = engines.context(engine)
    for document in documents:
        sentences, whole = document.sentences, [range(len(document.sentences))]
        size = sum(len(message["content"].encode()) for message in document.messages(sentences, sharper=True))
        if context is not None and not surely_fits(size, output_tokens, context):
            whole = _runs(document, engines, engine, context - output_tokens)
        document.parts = [Part(run.start, sentences[run.start : run.stop]) for run in whole]


def _runs(document: Asked, engines: Engines, engine: str, room: int) -> list[range]:
    tokens = engines.tokens(engine)
    if tokens is None:
        return [range(len(document.sentences))]

    def fits(run: range) -> bool:
        messages = document.messages(document.sentences[run.start : run.stop], sharper=True)
        return tokens.count(messages) <= room

    return runs(len(document.sentences), fits)


def ask(
    documents: Sequence[Asked], engines: Engines, engine: str, samplings: Sequence[Sampling]
) -> list[list[list[Generation]]]:
    """Asks about every part; one sampling per attempt, whose prompts go out in one call.

    Returns the calls made: attempt -> document -> generations.
    """
    text = engines.text(engine)
    calls: list[list[list[Generation]]] = []
    for attempt, sampling in enumerate([*samplings, replace(samplings[-1], fresh=True)]):
        asked = [document.retry or not sampling.fresh for document in documents]
        todo = [
            [part for part in document.parts if part.unread and wanted]
            for document, wanted in zip(documents, asked, strict=True)
        ]
        if attempt and not any(todo):
            break
        prompts = [
            document.messages(part.sentences, sharper=min(attempt, len(samplings) - 1) > 0)
            for document, parts in zip(documents, todo, strict=True)
            for part in parts
        ]
        answers = iter(text.generate(prompts, sampling, priority=PRIORITY))
        calls.append([])
        for parts in todo:
            for part in parts:
                part.answer = answer = next(answers)
                part.attempts += 1
                part.extraction = prompt.parse(answer.text, len(part.sentences), cut=answer.finish == "length")
            calls[-1].append([part.answer for part in parts if part.answer])
    return calls
