"""Chat prompts as token ids, with the marks of a prompt turned into places among the tokens.

A prefix cache works in blocks of tokens. Where a prompt says which part of it begins other prompts too, and where
newlines do no harm, that part is padded to the end of a block, so that all of it is found again. Everything here is
exact: what is counted is what the engine computes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from lancer.engines.protocols import Message, Sampling
from lancer.prompts.answer import opening_of

HEADS: Final = 512  # shared beginnings whose tokens are kept: the documents of a few shards, some MB

_PROBE: Final = ("<document>\nTrees.\n</document>\n\n<question>\n", "What do trees do?\n</question>\nRating:")


@dataclass(frozen=True)
class TokenPrompt:
    """`ids` is what the engine computes; `scored` are the positions [start, end) of the scored part, with which `ids`
    ends, as nothing after it has a say in it; `padding` of ids were put in."""

    ids: list[int]
    scored: tuple[int, int] | None = None
    padding: int = 0


class ChatTokens:
    """A tokenizer with a chat template. Safe for several threads.

    tokenizer: of transformers, a fast one where prompts are scored or padded.
    template: further arguments of the chat template.
    block: tokens per block of the prefix cache; None = nothing is padded.
    """

    def __init__(self, tokenizer: Any, template: Mapping[str, Any], block: int | None = None) -> None:
        self._tokenizer, self._template, self._block = tokenizer, dict(template), block
        self._lock = threading.Lock()  # fast tokenizers are not thread-safe
        self._heads: OrderedDict[str, tuple[list[int], int]] = OrderedDict()
        self._newline = self._encode("\n")
        head, tail = _PROBE
        # False for tokenizers that put something before every text, as SentencePiece's may.
        self._splits = self._encode(head) + self._encode(tail) == self._encode(head + tail)

    def encode(self, prompt: Sequence[Message], *, score: bool = False, room: int | None = None) -> TokenPrompt:
        """`room`: nothing is put in where the prompt would become longer than so many tokens.

        ValueError or TypeError, or jinja2's TemplateError, when the template refuses the prompt; ValueError when a
        part is to be scored and cannot be found among the tokens.
        """
        with self._lock:
            text = self._render(prompt)
            last = prompt[-1]
            start = text.rfind(last["content"])
            shared = last.get("shared", 0)
            if start < 0 or not shared or not self._splits:
                return self._whole(text, last, start, score=score)
            head, tail = text[: start + shared], text[start + shared :]
            rest = self._tokenizer(tail, add_special_tokens=False, return_offsets_mapping=score)
            ids, padding = self._head(head, start + last["pad_at"] if "pad_at" in last else None, score=score)
            if padding and room is not None and len(ids) + len(rest["input_ids"]) > room:
                ids, padding = self._head(head, None, score=score)
            if not score:
                return TokenPrompt(ids + rest["input_ids"], None, padding)
            scored = _positions(rest["offset_mapping"], _moved(_span(last), -shared), len(ids))
            return TokenPrompt((ids + rest["input_ids"])[: scored[1]], scored, padding)

    def count(self, prompt: Sequence[Message], *, room: int | None = None) -> int:
        """Tokens of a prompt, padding included."""
        return len(self.encode(prompt, room=room).ids)

    def whole_output(self, text: str, sampling: Sampling) -> str:
        """What a model wrote, with the thinking block that the template opened for it (R1's does): else thinking that
        does not end reads as an answer. An output that kept to a restriction has none."""
        chosen = sampling.choice is not None and text.strip() in sampling.choice
        restricted = chosen or (sampling.json_schema is not None and text.lstrip().startswith(("{", "[")))
        return text if restricted or not text else self._opening + text

    def token_of(self, text: str) -> int | None:
        """The one token that `text` is; None when it is several, or none."""
        with self._lock:
            ids = self._encode(text)
        return ids[0] if len(ids) == 1 else None

    @cached_property
    def _opening(self) -> str:
        """The mark by which the template opens a thinking block; "" for one that refuses a plain question."""
        from jinja2 import TemplateError

        try:
            return opening_of(self._render([{"role": "user", "content": _PROBE[1]}]))
        except (TemplateError, ValueError, TypeError):
            return ""

    def _render(self, prompt: Sequence[Message]) -> str:
        text: str = self._tokenizer.apply_chat_template(
            [{"role": m["role"], "content": m["content"]} for m in prompt],
            add_generation_prompt=True,
            tokenize=False,
            **self._template,
        )
        return text

    def _whole(self, text: str, last: Message, start: int, *, score: bool) -> TokenPrompt:
        if not score:
            return TokenPrompt(self._encode(text))
        if start < 0:
            raise ValueError("the chat template changes the text: its scored part cannot be found")
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        scored = _positions(encoded["offset_mapping"], _moved(_span(last), start), 0)
        return TokenPrompt(encoded["input_ids"][: scored[1]], scored)

    def _head(self, head: str, pad_at: int | None, *, score: bool) -> tuple[list[int], int]:
        """The tokens of a shared beginning, padded at the character `pad_at`, and how many were put in.

        The logits of the token before the scored part are needed: it is left outside the last whole block.
        """
        key = f"{pad_at} {score} {head}"
        known = self._heads.get(key)
        if known is not None:
            self._heads.move_to_end(key)
            return known
        if pad_at is None or self._block is None or len(self._newline) != 1:
            padded = (self._encode(head), 0)
        else:
            encoded = self._tokenizer(head, add_special_tokens=False, return_offsets_mapping=True)
            ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
            at = next((i for i, (start, _) in enumerate(offsets) if start >= pad_at), len(ids))
            padding = -(len(ids) - score) % self._block
            padded = (ids[:at] + self._newline * padding + ids[at:], padding)
        self._heads[key] = padded
        if len(self._heads) > HEADS:
            self._heads.popitem(last=False)
        return padded

    def count_text(self, text: str) -> int:
        """Tokens of a text by itself, as of an answer."""
        with self._lock:
            return len(self._encode(text))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def _span(message: Message) -> tuple[int, int]:
    if "scored" not in message:
        raise ValueError("no part of the prompt is marked to be scored")
    return message["scored"]


def _moved(span: tuple[int, int], by: int) -> tuple[int, int]:
    return span[0] + by, span[1] + by


def _positions(offsets: Sequence[tuple[int, int]], span: tuple[int, int], before: int) -> tuple[int, int]:
    """Of the tokens that overlap the characters [start, end); ValueError when there are none."""
    inside = [i for i, (start, end) in enumerate(offsets) if start < span[1] and end > span[0]]
    if not inside:
        raise ValueError("the part to be scored has no tokens")
    return before + inside[0], before + inside[-1] + 1
