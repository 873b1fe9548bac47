"""A text engine and a scorer without a model: drawn from a hash, to measure the pipeline around it at any scale.

A prompt with a choice gets one of its choices, one with a JSON schema an object of that form, any other gets a list of
questions, as `decompose` asks for; log-probabilities are drawn as well, and so is the probability of a pair. What is
drawn depends on the seed and the messages or the pair only, never on the order of calls. It means nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from pydantic import Field

from lancer.closed import Closed
from lancer.engines.meter import Meter
from lancer.engines.protocols import Block, EngineClock, Generation, Message, Sampling, ScoredBlock

_CHARS_PER_TOKEN: Final = 4
_LEAST_LOGPROB: Final = -8.0  # of a token of a part that is scored


class SyntheticConfig(Closed):
    """What is drawn, and how long it seems to take."""

    kind: Literal["synthetic"] = "synthetic"
    seed: int = 0
    questions: int = Field(10, ge=1, le=50)  # in the answer to a prompt without a choice
    latency_s: float = Field(0.0, ge=0)  # of a call, however many prompts or pairs it has
    replicas: int = Field(1, ge=1)
    num_cpus: float = Field(0.25, ge=0)

    def result_fields(self) -> dict[str, object]:
        """What enters fingerprints."""
        return self.model_dump(include={"seed", "questions"})


class SyntheticEngine:
    """A `TextEngine` and a `PairScorer`. A token counts as four characters, and none is cached."""

    def __init__(self, config: SyntheticConfig) -> None:
        self.config = config
        self._meter = Meter()
        self._meter.ready()

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        """See `TextEngine.generate`. `priority` has no effect."""
        with self._meter:
            if self.config.latency_s:
                time.sleep(self.config.latency_s)
            answers = [self._answer(prompt, sampling) for prompt in prompts]
        self._meter.count(answers)
        return answers

    def score(self, blocks: Sequence[Block]) -> list[ScoredBlock]:
        """See `PairScorer.score`."""
        with self._meter:
            if self.config.latency_s:
                time.sleep(self.config.latency_s)
            scored = [self._score(block) for block in blocks]
        self._meter.add(calls=len(blocks), tokens=sum(block.tokens for block in scored))
        return scored

    def clock(self) -> EngineClock:
        """Hardly any start-up; busy = some call is being answered."""
        return self._meter.clock()

    def close(self) -> None:
        """Nothing to free."""

    def _score(self, block: Block) -> ScoredBlock:
        scores = np.empty((len(block.documents), len(block.sub_questions)), np.float32)
        tokens = 0
        for i, document in enumerate(block.documents):
            for j, question in enumerate(block.sub_questions):
                text = f"{document}\0{question}"
                scores[i, j] = _shares(self._draw(text), 1)[0]
                tokens += -(-len(text) // _CHARS_PER_TOKEN)
        return ScoredBlock(scores=scores, tokens=tokens, queue_s=0.0, run_s=self.config.latency_s)

    def _draw(self, text: str) -> bytes:
        return hashlib.sha256(f"{self.config.seed}\0{text}".encode("utf-8", "surrogatepass")).digest()

    def _answer(self, prompt: Sequence[Message], sampling: Sampling) -> Generation:
        text = "\0".join(part for m in prompt for part in (m["role"], m["content"]))
        drawn = self._draw(text)
        answer, error = "", ""
        logprobs: tuple[float, ...] = ()
        try:
            answer, logprobs = self._text(drawn, sampling), _logprobs(drawn, prompt, sampling)
        except ValueError as refused:
            error = str(refused)
        return Generation(
            text=answer,
            error=error,
            finish="error" if error else "stop",
            prompt_tokens=-(-len(text) // _CHARS_PER_TOKEN),
            output_tokens=-(-len(answer) // _CHARS_PER_TOKEN),
            run_s=self.config.latency_s,
            logprobs=logprobs,
        )

    def _text(self, drawn: bytes, sampling: Sampling) -> str:
        if sampling.score:
            return ""
        if sampling.choice is not None:
            return sampling.choice[int.from_bytes(drawn[:8]) % len(sampling.choice)]
        return self._questions(drawn) if sampling.json_schema is None else _json(drawn, sampling.json_schema)

    def _questions(self, drawn: bytes) -> str:
        digits = hashlib.shake_256(drawn).hexdigest(12 * self.config.questions)
        lines = (
            f"{n + 1}. How does {digits[i : i + 8]} relate to {digits[i + 8 : i + 16]} in {digits[i + 16 : i + 24]}?"
            for n, i in enumerate(range(0, len(digits), 24))
        )
        return "\n".join(lines)


def _json(drawn: bytes, schema: str) -> str:
    """ValueError for a form other than an object of enumerated values."""
    try:
        values = {name: value["enum"] for name, value in json.loads(schema)["properties"].items()}
    except (LookupError, TypeError) as error:
        raise ValueError("the synthetic engine knows JSON schemas of objects of enumerated values only") from error
    shares = _shares(drawn, len(values))
    return json.dumps({n: of[int(share * len(of))] for (n, of), share in zip(values.items(), shares, strict=True)})


def _logprobs(drawn: bytes, prompt: Sequence[Message], sampling: Sampling) -> tuple[float, ...]:
    """Of strings: a part of one distribution, whose rest falls to none of them. Of a scored part: any numbers."""
    if sampling.score:
        if "scored" not in prompt[-1]:
            raise ValueError("no part of the prompt is marked to be scored")
        start, end = prompt[-1]["scored"]
        return tuple(_LEAST_LOGPROB * share for share in _shares(drawn, -(-(end - start) // _CHARS_PER_TOKEN)))
    if sampling.logprobs_of is None:
        return ()
    weights = [1 - share for share in _shares(drawn, len(sampling.logprobs_of) + 1)]  # above 0
    return tuple(math.log(weight / sum(weights)) for weight in weights[1:])


def _shares(drawn: bytes, n: int) -> list[float]:
    """Numbers from 0 (included) to 1 (not)."""
    more = hashlib.shake_256(b"shares" + drawn).digest(4 * n)
    return [int.from_bytes(more[i : i + 4]) / 2**32 for i in range(0, 4 * n, 4)]
