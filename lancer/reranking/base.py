"""What every reranking method is: a closed config that knows how to order the documents of one query.

Two kinds. A `ByScorer` turns one block of a pair scorer into an order. A `ByModel` holds a conversation with a text
engine (`lancer.reranking.rounds`). Both know texts and numbers only; `lancer.stages.rerank` knows columns and engines.
A new method is one file with one of the two, and one line in `lancer.reranking.table`.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, StringConstraints

from lancer.closed import Closed
from lancer.engines.protocols import Block, Generation, Message, Sampling
from lancer.text.request_fields import RequestField

FloatArray = npt.NDArray[np.float64]
Conversation = Generator[list[list[Message]], list[Generation], "Reranked"]


@dataclass(frozen=True)
class Reranked:
    """An order of the documents that a method was given.

    order: their places, best first, each once. scores: beside the documents as given; NaN or None = no score.
    faults: what went wrong, counted: `error` (calls), `unreadable` (answers), `missing`, `unknown`, `repeated` (ids).
    """

    order: list[int]
    scores: FloatArray | None = None
    faults: Counter[str] = field(default_factory=Counter)


def by_score(scores: FloatArray, faults: Counter[str] | None = None) -> Reranked:
    """Falling score; ties, and after all others those without a score (NaN), in the order given."""
    order = np.argsort(np.where(np.isnan(scores), np.inf, -scores), kind="stable")
    return Reranked(order.tolist(), scores, faults if faults is not None else Counter())


class RerankStep(Closed):
    """What all methods take. `method` tells them apart in a config."""

    kinds: ClassVar[tuple[str, ...]] = ()  # of engines that go with it; () = every kind of its role
    shown: ClassVar[tuple[str, ...]] = ()  # settings of the method that belong in a run's tag

    method: str
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")] | None = None
    """Of the order; null = the method."""
    engine: str
    depth: int = Field(100, ge=1)
    """So many of the first are reranked; the rest follow as they were."""
    keep: int | None = Field(None, ge=1)
    """So many go on to later steps and stages; the others stay behind them. null = all."""
    query: Annotated[tuple[RequestField, ...], Field(min_length=1)] = ("text",)
    """The request's fields that documents are compared with."""

    @property
    def order_name(self) -> str:
        """Of the column, the stage and the run file."""
        return self.name or self.method

    @property
    def least(self) -> float | None:
        """The score that a document must reach to be kept; None where all are."""
        return None

    @property
    def narrows(self) -> bool:
        """Whether some candidates may not go on."""
        return self.keep is not None or self.least is not None

    def tag(self) -> str:
        """For run files: the method with what shapes its result, e.g. `listwise(depth=100,window=20,step=10)`."""
        own = {name.rstrip("_"): getattr(self, name) for name in self.shown}
        settings = {"depth": self.depth, **own, "keep": self.keep}
        return f"{self.method}({','.join(f'{name}={value}' for name, value in settings.items() if value is not None)})"

    def identity(self) -> dict[str, Any]:
        """Everything that can change a result, as JSON."""
        return self.model_dump(mode="json", exclude={"name", "engine"})


class ByScorer(RerankStep):
    """A method that needs one block of a pair scorer."""

    @abstractmethod
    def block(self, query: str, documents: Sequence[str]) -> Block:
        """What is scored for one query."""

    @abstractmethod
    def reranked(self, scores: FloatArray) -> Reranked:
        """The order of the documents, from the block's scores (documents, sub-questions); NaN = failed."""


class ByModel(RerankStep):
    """A method that asks a text engine."""

    pairwise: ClassVar[bool] = False  # whether a call is about one document

    max_words: int | None = Field(300, ge=1)
    """Of a document; what follows is cut off. null = whole documents, as far as the model's length allows."""

    @abstractmethod
    def sampling(self) -> Sampling:
        """Of every call."""

    @property
    @abstractmethod
    def together(self) -> int:
        """The most documents that one prompt shows."""

    @abstractmethod
    def messages(self, query: str, documents: Sequence[str]) -> list[Message]:
        """The prompt about so many documents, or fewer."""

    @abstractmethod
    def rerank(self, query: str, documents: Sequence[str]) -> Conversation:
        """Asks about the documents, in their order so far; they are short enough already (`lancer.stages.shown`)."""

    @abstractmethod
    def prompt_identity(self) -> str:
        """Changes with the prompt's text and its reader."""

    def identity(self) -> dict[str, Any]:
        """With the prompt and its reader."""
        return super().identity() | {"prompt": hashlib.sha256(self.prompt_identity().encode()).hexdigest()}
