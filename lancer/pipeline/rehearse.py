"""A plan's stages on a few of its queries, with engines that count and compute nothing: what they would be asked.

The stages are the real ones, so a prompt, a layout or a rule of theirs that changes changes the count with it. What a
model would write is not known before it is paid for; each such guess is told as an assumption.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa

from lancer.config import Config
from lancer.engines.bi_encoder import BiEncoderConfig
from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.counting import CHARS_PER_TOKEN, CountingScorer, CountingText
from lancer.engines.cross_encoder import CrossEncoderConfig
from lancer.engines.documents import DocumentStore
from lancer.engines.lucene import LuceneConfig
from lancer.engines.lucene_index import is_built, is_here
from lancer.engines.protocols import (
    Documents,
    Generation,
    Hit,
    Hits,
    Message,
    PairScorer,
    Sampling,
    SearchEngine,
    TextEngine,
)
from lancer.engines.replay import ReplayConfig
from lancer.engines.synthetic import SyntheticConfig
from lancer.engines.table import build_engine
from lancer.engines.tokenizers import context_of, model_tokens
from lancer.errors import PlanError, SetupError
from lancer.pipeline.cost import same_engines
from lancer.pipeline.plan import Plan
from lancer.stages.base import call
from lancer.stages.records import LedgerRecord
from lancer.storage import Storage

BUILD_AT_MOST: Final = 20_000  # documents of a corpus whose index is built for an estimate, in some seconds
RATING: Final = "3"


@dataclass(frozen=True)
class Rehearsal:
    """`records` of the sampled queries, as a ledger's; `refused`: calls of prompts that an engine would not take."""

    queries: tuple[str, ...]
    total: int
    records: list[LedgerRecord]
    refused: dict[str, int]
    assumptions: list[str] = field(default_factory=list)


def rehearse(plan: Plan, storage: Storage, *, sample: int, sub_questions: Sequence[str] = ()) -> Rehearsal:
    """On `sample` queries, or all where there are fewer; `sub_questions` are typical ones, if any are known.

    SetupError: a tokenizer is not on this machine. PlanError: the document texts are in an index that is not.
    """
    ids = plan.inputs.table["query_id"].to_pylist()
    drawn = set(draw(ids, sample))
    table = plan.inputs.table.filter(pa.array([i in drawn for i in ids]))
    engines = _Engines(plan, storage, sub_questions)
    records: list[LedgerRecord] = []
    refused: dict[str, int] = {}
    for stage in plan.stages:
        engines.stage = stage.name
        columns = []
        for row in range(table.num_rows):
            added, output = call(stage.stage, table.slice(row, 1), engines)
            records.extend(output.ledger)
            columns.append(added)
        added = pa.concat_tables(columns).combine_chunks()
        for new in stage.stage.adds:
            table = table.append_column(new, added[new.name])
        if engines.refused:
            refused[stage.name], engines.refused = engines.refused, 0
    first = f"sample: {len(drawn)} of {len(ids)} queries, those whose ids' hashes come first"
    assumptions = [first, *engines.assumptions(), *_on_scores(plan.config)]
    return Rehearsal(tuple(sorted(drawn)), len(ids), records, refused, assumptions)


def _on_scores(config: Config) -> Iterator[str]:
    """What is decided by scores and grades, which are drawn evenly from their whole range: nothing was scored."""
    for step in config.rerank:
        if step.least is not None:
            yield (
                f"rerank.{step.order_name}: scores are drawn at random, so how many documents reach the threshold "
                f"{step.least:g} is a guess"
            )
    only = config.judge.only if config.judge else None
    if only is not None and (only.uncertain is not None or only.until is not None):
        parts = " and ".join(f"`{name}`" for name in ("uncertain", "until") if getattr(only, name) is not None)
        yield (f"judge: estimates are drawn from 0 to 1, so how many cells {parts} of `judge.only` leaves is a guess")


def draw(ids: Sequence[str], count: int) -> list[str]:
    """So many ids: those with the smallest hashes, so that a larger sample has the smaller one in it."""
    return sorted(ids, key=lambda i: hashlib.sha256(f"estimate\0{i}".encode()).digest())[:count]


class _Engines:
    """The engines of a rehearsal, by name, made when they are first asked for; those of equal configs are one."""

    def __init__(self, plan: Plan, storage: Storage, sub_questions: Sequence[str]) -> None:
        self._plan, self._storage = plan, storage
        self._same = same_engines(plan.config)
        self._built: dict[tuple[str, str], Any] = {}
        self._documents: Documents | None = None
        self._said: dict[str, None] = {}  # assumptions, in order, each once
        self._answers = _Answers(plan.config, sub_questions)
        self.stage = ""
        self.refused = 0

    def assumptions(self) -> list[str]:
        """Of the engines that were used, for a person."""
        return [*self._said, *self._answers.said]

    def text(self, name: str) -> TextEngine:
        """Counts; a replay and a synthetic engine are themselves."""
        engine: TextEngine = self._engine(name, lambda: self._text(name))
        return _Watched(engine, self)

    def scorer(self, name: str) -> PairScorer:
        """Counts."""
        scorer: PairScorer = self._engine(name, lambda: self._scorer(name))
        return scorer

    def search(self, name: str) -> SearchEngine:
        """Lucene where its index is at hand, else documents drawn at random."""
        search: SearchEngine = self._engine(name, lambda: self._search(name), "search")
        return search

    def documents(self) -> Documents:
        """The real ones."""
        if self._plan.source.kind == "index":
            documents: Documents = self._engine(
                self._plan.source.location, lambda: self._search(self._plan.source.location), "search"
            )
            return documents
        if self._documents is None:
            self._documents = self._plan.source.open(self._storage)
        return self._documents

    def context(self, name: str) -> int | None:
        """See `lancer.stages.base.Engines`."""
        return context_of(self._plan.config.engines[name])

    def tokens(self, name: str) -> ChatTokens | None:
        """See `lancer.stages.base.Engines`."""
        known = model_tokens(self._plan.config.engines[name])
        return None if known is None else known.chat

    def _engine(self, name: str, build: Callable[[], Any], use: str = "") -> Any:
        first = self._same[name], use  # one engine may search and score
        if first not in self._built:
            self._built[first] = build()
        return self._built[first]

    def _say(self, assumption: str) -> None:
        self._said[assumption] = None

    def _text(self, name: str) -> TextEngine:
        config = self._plan.config.engines[name]
        if isinstance(config, SyntheticConfig | ReplayConfig):
            engine: TextEngine = build_engine(config, self._plan.source, self._storage)
            return engine
        counting = CountingText(config, lambda prompt: self._answers.to(self.stage, prompt))
        if not counting.exact:
            self._say(f"{name}: its tokenizer is not known, a token counts as {CHARS_PER_TOKEN} characters")
        if counting.caches:
            self._say(f"{name}: its prefix cache forgets nothing while a query is worked on")
        else:
            self._say(f"{name}: nothing is cached")
        return counting

    def _scorer(self, name: str) -> PairScorer:
        config = self._plan.config.engines[name]
        if isinstance(config, SyntheticConfig):
            scorer: PairScorer = build_engine(config, self._plan.source, self._storage)
            return scorer
        assert isinstance(config, BiEncoderConfig | CrossEncoderConfig)
        if isinstance(config, BiEncoderConfig) and config.embeddings is not None:
            self._say(f"{name}: the embeddings of the corpus are there already; making them is no part of this")
        return CountingScorer(config)

    def _search(self, name: str) -> SearchEngine:
        config, source = self._plan.config.engines[name], self._plan.source
        if isinstance(config, BiEncoderConfig):
            self._say(
                f"{name}: candidates of dense retrieval are documents drawn at random, found ones are often longer"
            )
            return _Drawn(source.open(self._storage), CountingScorer(config).query_tokens)
        assert isinstance(config, LuceneConfig)
        store = None if source.kind == "index" else source.open(self._storage)
        reason = "its index is not on this machine"
        if self._at_hand(config, store):
            try:
                engine: SearchEngine = build_engine(config, source, self._storage)
                return engine
            except SetupError as error:
                reason = str(error)
        if store is None:
            raise PlanError(f"engine {name!r}: {reason}, and it holds the documents: nothing can be estimated here")
        self._say(f"{name}: {reason}; candidates are documents drawn at random, found ones are often longer")
        return _Drawn(store)

    def _at_hand(self, config: LuceneConfig, store: DocumentStore | None) -> bool:
        if config.index is not None:
            return is_here(config.index, self._storage)
        small = store is not None and store.count() <= BUILD_AT_MOST
        vectors = config.rm3 is not None
        return small or is_built(self._plan.source.digest, language=config.language, vectors=vectors)


class _Counts(Protocol):
    refused: int


class _Watched:
    """A text engine; calls that it refuses are counted."""

    def __init__(self, engine: TextEngine, counts: _Counts) -> None:
        self._engine, self._counts = engine, counts

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        """See `TextEngine.generate`."""
        generations = self._engine.generate(prompts, sampling, priority=priority)
        self._counts.refused += sum(bool(g.error) for g in generations)
        return generations


class _Drawn:
    """A `SearchEngine` that finds anything."""

    def __init__(self, store: DocumentStore, tokens_of: Callable[[str], int] = lambda query: 0) -> None:
        self._store, self._tokens_of = store, tokens_of

    def search(self, queries: Sequence[str], depth: int) -> list[list[Hit]]:
        """See `SearchEngine`; the same query finds the same."""
        seeds = [int.from_bytes(hashlib.sha256(q.encode()).digest()[:8]) for q in queries]
        found = [self._store.sample(depth, seed) for seed in seeds]
        return [
            Hits((Hit(doc_id, float(-rank)) for rank, doc_id in enumerate(ids)), self._tokens_of(query))
            for query, ids in zip(queries, found, strict=True)
        ]


class _Answers:
    """What a model is taken to write where the form of an answer is free, by stage."""

    def __init__(self, config: Config, sub_questions: Sequence[str]) -> None:
        self._n = config.decompose.n if config.decompose else 0
        self._typical, self._at = list(dict.fromkeys(sub_questions)), 0
        self.said: dict[str, None] = {}

    def to(self, stage: str, prompt: Sequence[Message]) -> str:
        """An answer that the stage can read."""
        if stage != "decompose":
            self.said[f"{stage}: an answer of free form is one digit, read at the first attempt"] = None
            return RATING
        likeness = "those of the earlier run" if self._typical else "those of the prompt's examples"
        self.said[f"{stage}: {self._n} sub-questions per query, as long as {likeness}, and nothing else is written"] = (
            None
        )
        known = self._typical or list(dict.fromkeys(_shown(prompt)))
        turned = known[self._at :] + known[: self._at]
        if self._typical:
            self._at = (self._at + self._n) % len(known)
        questions = itertools.islice(_variations(turned), self._n)
        return "\n".join(f"{number}. {question}" for number, question in enumerate(questions, start=1))


def _shown(prompt: Sequence[Message]) -> list[str]:
    """The lines of the prompt's worked examples, without their numbers."""
    lines = [line for m in prompt if m["role"] == "assistant" for line in m["content"].splitlines()]
    return [line.partition(". ")[2] or line for line in lines] or ["What is it?"]


def _variations(questions: Sequence[str]) -> Iterator[str]:
    """The questions again and again, with different words in front."""
    yield from questions
    for number in itertools.count(1):
        yield from (f"In case {number}, {question}" for question in questions)
