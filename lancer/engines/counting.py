"""Engines that count what they are asked and compute nothing: `lancer plan --estimate` runs the stages on them.

Tokens of prompts are exact where the engine's tokenizer is known. Answers have the form that is asked for, so that a
stage goes on as it would, and mean nothing; how long they are is an assumption wherever the form leaves it open.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from lancer.engines.bi_encoder import BiEncoderConfig, sentences_of
from lancer.engines.cross_encoder import CrossEncoderConfig
from lancer.engines.embedded import resolve_model
from lancer.engines.pair_packing import PairTemplate, Windows, build_inputs
from lancer.engines.prefix_cache import PrefixCache
from lancer.engines.protocols import Block, Generation, Message, Sampling, ScoredBlock
from lancer.engines.table import EngineConfig
from lancer.engines.tokenizers import ModelTokens, model_tokens
from lancer.engines.vllm_engine import VllmConfig, block_of
from lancer.errors import SetupError

CHARS_PER_TOKEN: Final = 4  # where there is no tokenizer

Answer = Callable[[Sequence[Message]], str]


class CountingText:
    """A `TextEngine`. `answer` gives the text of an answer whose form is free.

    SetupError: the model's tokenizer is not on this machine.
    """

    def __init__(self, config: EngineConfig, answer: Answer) -> None:
        self._answer = answer
        self._tokens: ModelTokens | None = model_tokens(config)
        self._cache = None
        if isinstance(config, VllmConfig):
            self._cache = PrefixCache(block_of(config))

    @property
    def exact(self) -> bool:
        """Whether tokens of prompts are counted by the engine's own tokenizer."""
        return self._tokens is not None

    @property
    def caches(self) -> bool:
        """Whether a prefix cache is reckoned with."""
        return self._cache is not None

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        """See `TextEngine.generate`."""
        return [self._generate(prompt, sampling) for prompt in prompts]

    def _generate(self, prompt: Sequence[Message], sampling: Sampling) -> Generation:
        from jinja2 import TemplateError

        if self._tokens is None:
            characters = sum(len(m["role"]) + len(m["content"]) for m in prompt)
            return self._answered(prompt, sampling, -(-characters // CHARS_PER_TOKEN), 0, 1)
        room = self._tokens.context - max(1, sampling.max_tokens)
        try:
            encoded = self._tokens.chat.encode(prompt, score=sampling.score, room=room)
        except (TemplateError, ValueError, TypeError) as error:
            return Generation(text="", error=f"the prompt is refused: {error}", finish="error")
        if len(encoded.ids) > room:
            reason = f"prompt of {len(encoded.ids)} tokens is too long for a context of {self._tokens.context}"
            return Generation(text="", error=reason, finish="error")
        cached = 0 if self._cache is None else self._cache.take(encoded.ids)
        scored = 1 if encoded.scored is None else encoded.scored[1] - encoded.scored[0]
        return self._answered(prompt, sampling, len(encoded.ids), cached, scored)

    def _answered(
        self, prompt: Sequence[Message], sampling: Sampling, tokens: int, cached: int, scored: int
    ) -> Generation:
        logprobs: tuple[float, ...] = ()
        if sampling.score:
            text, logprobs = "", (-1.0,) * scored
        elif sampling.choice is not None:
            text = sampling.choice[_drawn(prompt) % len(sampling.choice)]
        elif sampling.json_schema is not None:
            text = json.dumps(example_of(json.loads(sampling.json_schema)))
        else:
            text = self._answer(prompt)
        if sampling.logprobs_of is not None:
            logprobs = (-math.log(len(sampling.logprobs_of)),) * len(sampling.logprobs_of)
        return Generation(
            text=text,
            prompt_tokens=tokens,
            cached_tokens=cached,
            output_tokens=self._written(text, sampling),
            logprobs=logprobs,
        )

    def _written(self, text: str, sampling: Sampling) -> int:
        """Tokens of an answer, with the one that ends it; a choice of single tokens needs none."""
        if sampling.choice is not None and all(self._count(one) == 1 for one in sampling.choice):
            return 1
        return min(max(1, sampling.max_tokens), self._count(text) + 1)

    def _count(self, text: str) -> int:
        if self._tokens is None:
            return -(-len(text) // CHARS_PER_TOKEN)
        return self._tokens.chat.count_text(text)


def example_of(schema: Any) -> Any:
    """The simplest value that a JSON schema allows; null for a form that is not known here."""
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {key: example_of(of) for key, of in schema.get("properties", {}).items()}
        case "array":
            return [example_of(schema.get("items", {}))] * schema.get("minItems", 1)
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "string":
            return "text"
        case "boolean":
            return True
    return None


class CountingScorer:
    """A `PairScorer` that scores by a hash: tokens as its tokenizer counts them, pairs in any case.

    SetupError: the model's tokenizer is not on this machine.
    """

    def __init__(self, config: BiEncoderConfig | CrossEncoderConfig) -> None:
        from transformers import AutoTokenizer

        self._config = config
        resolved = resolve_model(config.model, config.revision)
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(resolved.path_or_id, revision=config.revision)
        except (OSError, ValueError) as error:
            raise SetupError(f"the tokenizer of {config.model!r} cannot be loaded: {error}") from error

    def score(self, blocks: Sequence[Block]) -> list[ScoredBlock]:
        """See `PairScorer.score`. Pairs that several blocks share count in each."""
        return [
            ScoredBlock(scores=_hashed(block), tokens=self._tokens(block), queue_s=0.0, run_s=0.0) for block in blocks
        ]

    def query_tokens(self, query: str) -> int:
        """Of a query that is searched for, by a bi-encoder."""
        assert isinstance(self._config, BiEncoderConfig)
        (ids,) = self._ids([self._config.query_prefix + query], special=True)
        return min(len(ids), self._config.max_tokens)

    def _tokens(self, block: Block) -> int:
        if isinstance(self._config, BiEncoderConfig):
            texts = [self._config.document_prefix + d for d in self._encoded(block.documents)]
            texts += [self._config.query_prefix + q for q in block.sub_questions]
            encoded = self._ids(list(dict.fromkeys(texts)), special=True)
            return sum(min(len(ids), self._config.max_tokens) for ids in encoded)
        sub_questions, documents = list(dict.fromkeys(block.sub_questions)), list(dict.fromkeys(block.documents))
        pairs = np.indices((len(sub_questions), len(documents))).reshape(2, -1).T
        windows = Windows(self._config.window, self._config.stride) if self._config.long == "windows" else None
        inputs = build_inputs(
            PairTemplate.of(self._tokenizer),
            self._ids(sub_questions),
            self._ids(documents),
            pairs,
            max_tokens=self._config.max_tokens,
            truncation=self._config.truncation,
            windows=windows,
        )
        return int(inputs.total.sum())

    def _encoded(self, documents: Sequence[str]) -> Sequence[str]:
        """What a bi-encoder encodes of a block's documents: nothing of those whose embeddings are kept."""
        assert isinstance(self._config, BiEncoderConfig)
        if self._config.similarity == "best-sentence":
            return [part for text in documents for part in sentences_of(text)]
        kept = self._config.similarity == "cosine" and self._config.embeddings is not None
        return () if kept else documents

    def _ids(self, texts: list[str], *, special: bool = False) -> list[list[int]]:
        ids: list[list[int]] = self._tokenizer(texts, add_special_tokens=special)["input_ids"] if texts else []
        return ids


def _hashed(block: Block) -> np.ndarray[Any, np.dtype[np.float32]]:
    seed = int.from_bytes(hashlib.sha256("\0".join((*block.documents, *block.sub_questions)).encode()).digest()[:8])
    shape = (len(block.documents), len(block.sub_questions))
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def _drawn(prompt: Sequence[Message]) -> int:
    text = "\0".join(m["content"] for m in prompt)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8])
