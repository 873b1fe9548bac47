"""A text engine without a model: answers drawn from a hash, to measure the pipeline around it at any scale.

A prompt with a choice gets one of its choices, any other gets a list of questions, as `decompose` asks for. What is
answered depends on the seed and the messages only, never on the order of calls. The answers mean nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Final, Literal

from pydantic import Field

from lancer.closed import Closed
from lancer.engines.meter import Meter
from lancer.engines.protocols import EngineClock, Generation, Message, Sampling

_CHARS_PER_TOKEN: Final = 4


class SyntheticConfig(Closed):
    """What is drawn, and how long it seems to take."""

    kind: Literal["synthetic"] = "synthetic"
    seed: int = 0
    questions: int = Field(10, ge=1, le=50)  # in the answer to a prompt without a choice
    latency_s: float = Field(0.0, ge=0)  # of a call of `generate`, however many prompts it has
    replicas: int = Field(1, ge=1)
    num_cpus: float = Field(0.25, ge=0)

    def result_fields(self) -> dict[str, object]:
        """What enters fingerprints."""
        return self.model_dump(include={"seed", "questions"})


class SyntheticEngine:
    """A `TextEngine`. A token counts as four characters, and none is cached."""

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
            answers = [self._answer(prompt, sampling.choice) for prompt in prompts]
        self._meter.count(answers)
        return answers

    def clock(self) -> EngineClock:
        """Hardly any start-up; busy = some call is being answered."""
        return self._meter.clock()

    def close(self) -> None:
        """Nothing to free."""

    def _answer(self, prompt: Sequence[Message], choice: tuple[str, ...] | None) -> Generation:
        text = "\0".join(part for m in prompt for part in (m["role"], m["content"]))
        drawn = hashlib.sha256(f"{self.config.seed}\0{text}".encode("utf-8", "surrogatepass")).digest()
        answer = self._questions(drawn) if choice is None else choice[int.from_bytes(drawn[:8]) % len(choice)]
        return Generation(
            text=answer,
            prompt_tokens=-(-len(text) // _CHARS_PER_TOKEN),
            output_tokens=-(-len(answer) // _CHARS_PER_TOKEN),
            run_s=self.config.latency_s,
        )

    def _questions(self, drawn: bytes) -> str:
        digits = hashlib.shake_256(drawn).hexdigest(12 * self.config.questions)
        lines = (
            f"{n + 1}. How does {digits[i : i + 8]} relate to {digits[i + 8 : i + 16]} in {digits[i + 16 : i + 24]}?"
            for n, i in enumerate(range(0, len(digits), 24))
        )
        return "\n".join(lines)
