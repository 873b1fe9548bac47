"""Engines that say what a test tells them to: for outputs that a real engine cannot be made to give."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.protocols import Block, Generation, Hit, Hits, Message, Sampling, ScoredBlock, TextEngine


class ScriptedText:
    """`answer(prompt text, sampling)` gives text or a Generation."""

    def __init__(self, answer: Callable[[str, Sampling], str | Generation]) -> None:
        self.answer = answer
        self.calls: list[tuple[list[str], Sampling, int]] = []

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        texts = [p[-1]["content"] for p in prompts]
        self.calls.append((texts, sampling, priority))
        given = [self.answer(text, sampling) for text in texts]
        return [
            g if isinstance(g, Generation) else Generation(text=g, prompt_tokens=10, cached_tokens=4, output_tokens=1)
            for g in given
        ]


class ScriptedScorer:
    """`score_of(document, sub_question)` gives the probability."""

    def __init__(self, score_of: Callable[[str, str], float]) -> None:
        self.score_of = score_of

    def score(self, blocks: Sequence[Block]) -> list[ScoredBlock]:
        return [
            ScoredBlock(
                scores=np.array(
                    [[self.score_of(d, q) for q in b.sub_questions] for d in b.documents], dtype=np.float32
                ).reshape(len(b.documents), len(b.sub_questions)),
                tokens=7,
                queue_s=0.0,
                run_s=0.5,
            )
            for b in blocks
        ]


class ScriptedSearch:
    """`hits` by query text."""

    def __init__(self, hits: dict[str, list[Hit]]) -> None:
        self.hits = hits

    def search(self, queries: Sequence[str], depth: int) -> list[list[Hit]]:
        found = [self.hits.get(q, []) for q in queries]
        return [hits if isinstance(hits, Hits) else hits[:depth] for hits in found]


class Texts:
    """Documents from a dictionary."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._texts = texts

    def texts(self, doc_ids: Sequence[str]) -> list[str | None]:
        return [self._texts.get(i) for i in doc_ids]


class Engines:
    """`lancer.stages.base.Engines`: whatever the name, the one that was given."""

    def __init__(
        self,
        *,
        text: TextEngine | None = None,
        scorer: ScriptedScorer | None = None,
        search: ScriptedSearch | None = None,
        searches: dict[str, ScriptedSearch] | None = None,
        texts: dict[str, str] | None = None,
        tokens: ChatTokens | None = None,
        context: int | None = None,
    ) -> None:
        self._text, self._scorer, self._search, self._documents = text, scorer, search, Texts(texts or {})
        self._tokens, self._context = tokens, context
        self._searches = searches or {}

    def text(self, name: str) -> TextEngine:
        assert self._text is not None
        return self._text

    def scorer(self, name: str) -> ScriptedScorer:
        assert self._scorer is not None
        return self._scorer

    def search(self, name: str) -> ScriptedSearch:
        search = self._searches.get(name, self._search)
        assert search is not None
        return search

    def documents(self) -> Texts:
        return self._documents

    def context(self, name: str) -> int | None:
        return self._context

    def tokens(self, name: str) -> ChatTokens | None:
        return self._tokens
