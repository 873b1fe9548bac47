"""The narrow seams between stages and whatever computes: generate text, score pairs, embed, search, look up documents.

Stages know only these. An engine is built on a worker from its config (`lancer.engines.build`), heavy imports happen in
its constructor, and every method may be called from several threads at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from lancer.prompts.message import Message as Message


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a text engine decodes, and what it says of it.

    The output is restricted by `choice` to one of the given strings, by `json_schema` (its text) to JSON of that form.
    """

    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    choice: tuple[str, ...] | None = None
    json_schema: str | None = None
    logprobs_of: tuple[str, ...] | None = None  # log-probabilities of these as the first token, before any restriction
    score: bool = False  # log-probabilities of the prompt's `scored` part, per token; the output means nothing
    fresh: bool = False  # an answer that was kept could not be used: ask again; engines leave it out of account


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One finished call. `error` is "" or one sentence: the call failed, `text` is empty. Seconds are of this call."""

    text: str  # with the opening mark of a thinking block that the chat template itself opened
    error: str = ""
    finish: str = "stop"  # stop | length | error
    prompt_tokens: int = 0  # cached ones included
    cached_tokens: int = 0
    output_tokens: int = 0
    queue_s: float = 0.0
    run_s: float = 0.0
    reused: bool = False  # answered from what an earlier call left, so paid already
    logprobs: tuple[float, ...] = ()  # natural; beside `Sampling.logprobs_of`, or one per token of the `scored` part


@dataclass(frozen=True)
class Block:
    """All pairs of some documents with some sub-questions: what one query asks of a scorer."""

    documents: tuple[str, ...]
    sub_questions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ScoredBlock:
    """`scores` has shape (documents, sub_questions), float32 in 0..1; NaN = the scorer failed on that pair.

    `reused`: all of it was paid earlier; else `reused_pairs` were, with `reused_tokens`; tokens and seconds are of the
    others.
    `cut_inputs`: texts or pairs of it that were longer than the scorer's limit, of those scored now.
    """

    scores: npt.NDArray[np.float32]
    tokens: int
    queue_s: float
    run_s: float
    reused: bool = False
    reused_pairs: int = 0
    reused_tokens: int = 0
    cut_inputs: int = 0


@dataclass(frozen=True)
class Hit:
    """One retrieved document."""

    doc_id: str
    score: float


class Hits(list[Hit]):
    """What was found for one query by a model that encodes it, and the tokens of that."""

    def __init__(self, hits: Iterable[Hit], tokens: int) -> None:
        super().__init__(hits)
        self.tokens = tokens


@dataclass(frozen=True, kw_only=True)
class EngineClock:
    """Seconds of one engine by its own timestamps, and what it has done so far.

    The three kinds of time add up to the engine's age; idle = ready with nothing to do. `tokens` are those of prompts
    and outputs; which of them were cached, and which are output, says what they cost.
    """

    startup_s: float
    busy_s: float
    idle_s: float
    calls: int
    tokens: int
    cached_tokens: int = 0
    output_tokens: int = 0


class TextEngine(Protocol):
    """Generates text from chat prompts."""

    def generate(
        self,
        prompts: Sequence[Sequence[Message]],
        sampling: Sampling,
        *,
        priority: int = 0,
    ) -> list[Generation]:
        """One `Generation` per prompt, in order. A prompt that fails has `error` set; EngineError = the engine is dead.

        Lower `priority` runs first. Prompts are submitted in the given order.
        """
        ...


class PairScorer(Protocol):
    """Scores (document, sub-question) pairs."""

    def score(self, blocks: Sequence[Block]) -> list[ScoredBlock]:
        """One `ScoredBlock` per block, in order; a block's scores do not depend on the calls around this one.

        CallFailed: these blocks are too much for it, or one of them is; others are not.
        """
        ...


Side = Literal["query", "document"]  # some models want them marked


class Embedder(Protocol):
    """Encodes single texts."""

    def embed(self, texts: Sequence[str], side: Side) -> npt.NDArray[np.float32]:
        """Unit vectors, shape (texts, dimensions), in order; equal texts are encoded once."""
        ...


class SearchEngine(Protocol):
    """First-stage retrieval."""

    def search(self, queries: Sequence[str], depth: int) -> list[list[Hit]]:
        """At most `depth` hits per query, best first; ties in the index's order, which is fixed.

        Those of a query that it took tokens to encode are `Hits`.
        """
        ...


class Documents(Protocol):
    """Document text by id."""

    def texts(self, doc_ids: Sequence[str]) -> list[str | None]:
        """Title and body of each document; None where the id is unknown or the text is empty."""
        ...
