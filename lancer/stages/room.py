"""Room for a document in the judge's prompts: prompt and output together stay within the model's length.

Counted with the model's own tokenizer, on the prompt with the longest sub-question. Most documents are far below the
limit; a token is at least one byte, so their bytes show it and no tokenizer is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from lancer.engines.chat_tokens import ChatTokens
from lancer.prompts.data import as_data
from lancer.prompts.judge import Layout, messages_of
from lancer.prompts.template import Prompt
from lancer.stages.base import Engines
from lancer.text.fitting import cut, windows

TEMPLATE_BYTES: Final = 2048  # more than what chat templates put around a prompt, a system prompt of theirs included

Long = Literal["cut", "windows"]


def surely_fits(size: int, output_tokens: int, context: int) -> bool:
    """Whether a prompt whose text has `size` bytes fits whatever its tokens are: each is at least one byte."""
    return size + TEMPLATE_BYTES + output_tokens <= context


@dataclass(frozen=True)
class Pieces:
    """What of a document is judged, and how many of its characters are left out."""

    texts: tuple[str, ...]
    cut: int = 0


@dataclass(frozen=True)
class Room:
    """For the prompts of one query. Without the engine's tokenizer nothing is counted and nothing cut."""

    engines: Engines
    engine: str
    layout: Layout
    pad: bool
    output_tokens: int
    document_tokens: int | None  # a limit of the document's own
    request: str | None
    sub_questions: Sequence[str]

    def pieces(self, document: str, long: Long) -> Pieces:
        """The document as it is, where it fits, where not even an empty one would, or where nothing is asked of it."""
        if not self.sub_questions or self._surely_fits(document) or self._tokens is None:
            return Pieces((document,))
        if long == "windows":
            return Pieces(tuple(windows(document, self._fits)))
        kept = cut(document, self._fits)
        return Pieces((kept,), len(document) - len(kept))

    def _surely_fits(self, document: str) -> bool:
        size = len(as_data(document).encode())
        if self.document_tokens is not None and size > self.document_tokens:
            return False
        return self._context is None or surely_fits(self._bytes + size, self.output_tokens, self._context)

    def _fits(self, document: str) -> bool:
        assert self._tokens is not None
        if self._context is not None:
            size = self._tokens.count(messages_of(self._prompt(document), pad=self.pad))
            if size + self.output_tokens > self._context:
                return False
        if self.document_tokens is None:
            return True
        return self._tokens.count(messages_of(self._prompt(document), pad=False)) - self._empty <= self.document_tokens

    def _prompt(self, document: str, asked: Sequence[str] | None = None) -> Prompt:
        asked = self._longest if asked is None else asked
        return self.layout.prompt(request=self.request, document=document, sub_questions=asked, sharper=True)

    @cached_property
    def _context(self) -> int | None:
        return self.engines.context(self.engine)

    @cached_property
    def _tokens(self) -> ChatTokens | None:
        return self.engines.tokens(self.engine)

    @cached_property
    def _prompts(self) -> list[Sequence[str]]:
        """What the sub-questions of a prompt can be: all of them, or each alone."""
        return [self.sub_questions] if self.layout.per_document else [[q] for q in self.sub_questions]

    @cached_property
    def _bytes(self) -> int:
        return max(len(self._prompt("", asked).content.encode()) for asked in self._prompts)

    @cached_property
    def _longest(self) -> Sequence[str]:
        assert self._tokens is not None
        tokens = self._tokens
        return max(self._prompts, key=lambda asked: tokens.count(messages_of(self._prompt("", asked), pad=False)))

    @cached_property
    def _empty(self) -> int:
        assert self._tokens is not None
        return self._tokens.count(messages_of(self._prompt(""), pad=False))
