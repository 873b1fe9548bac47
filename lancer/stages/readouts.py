"""What the judge asks of an engine, and what of its answer is the value of a cell: three readouts.

digit        the rating that the model writes, 0 to 5; per document a list of them
expected     the mean rating under the model's distribution over the six digits, from one prefill
likelihood   nats per token by which the sub-question is likelier after the document than without one (where the
             sub-question stands first: the document after the sub-question); a probability by the logistic
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from lancer.engines.protocols import Generation, Sampling
from lancer.prompts import judge as prompt
from lancer.prompts.reading import read_rating
from lancer.prompts.reading_lists import read_ratings
from lancer.prompts.reading_logprobs import LITTLE_MASS, MIN_MASS, expected, logistic, per_token
from lancer.schema import Scale

RATING_TOKENS: Final = 3  # published setting
# Per document: {"1": 0, "2": 5} takes 6 or 7 tokens per rating in the tokenizers looked at, "12. 3\n" no more.
ANSWER_TOKENS, CELL_TOKENS = 16, 9


@dataclass(frozen=True)
class Outcome:
    """What one call says of one cell. `value` None: unread for `reason`, or, with an `error`, failed."""

    value: float | None
    raw: str = ""
    reason: str = ""
    error: str = ""


class Readout(Protocol):
    """One way of reading; `n` is the number of sub-questions in a prompt."""

    @property
    def scale(self) -> Scale:
        """Of the values as `value_of` gives them."""
        ...

    @property
    def scored(self) -> str | None:
        """The place of the prompt whose log-probabilities are read, against those in a prompt without the rest."""
        ...

    def sampling(self, n: int, attempt: int) -> Sampling: ...

    def outcomes(self, generation: Generation, n: int) -> list[Outcome]:
        """One per sub-question, of a call that did not fail. Values are raw: comparable, larger is better."""
        ...

    def value_of(self, raw: float) -> float:
        """A raw value in the readout's scale."""
        ...


@dataclass(frozen=True)
class Digit:
    """The written rating. `structured`: the output is restricted to the digits, or to JSON with one for each."""

    per_document: bool
    structured: bool
    max_tokens: int | None
    temperature: float
    seed: int

    scale = Scale.rating
    scored = None

    def sampling(self, n: int, attempt: int) -> Sampling:
        """With the next seed at every attempt."""
        default = ANSWER_TOKENS + CELL_TOKENS * n if self.per_document else RATING_TOKENS
        schema = json.dumps(prompt.schema(n)) if self.structured and self.per_document else None
        return Sampling(
            max_tokens=self.max_tokens or default,
            temperature=self.temperature,
            seed=self.seed + attempt - 1,
            choice=prompt.CHOICES if self.structured and not self.per_document else None,
            json_schema=schema,
        )

    def outcomes(self, generation: Generation, n: int) -> list[Outcome]:
        """See `lancer.prompts.reading` and `lancer.prompts.reading_lists`."""
        cut = generation.finish == "length"
        if self.per_document:
            readings = read_ratings(generation.text, n, cut=cut)
        else:
            # A choice of one token also ends at the token limit; there it is no sign of a number that goes on. What is
            # no choice comes from a server that ignored the restriction.
            chosen = self.structured and generation.text.strip() in prompt.CHOICES
            readings = [read_rating(generation.text, cut=cut and not chosen)]
        return [Outcome(r.value, generation.text, str(r.reason)) for r in readings]

    def value_of(self, raw: float) -> float:
        """As written."""
        return raw


@dataclass(frozen=True)
class Expected:
    """Unread where less than `MIN_MASS` of the probability is on the digits; what is outside them is in `raw`."""

    scale = Scale.rating
    scored = None

    def sampling(self, n: int, attempt: int) -> Sampling:
        """One token, which is not looked at."""
        return Sampling(max_tokens=1, logprobs_of=prompt.CHOICES)

    def outcomes(self, generation: Generation, n: int) -> list[Outcome]:
        """See `lancer.prompts.reading_logprobs.expected`."""
        if len(generation.logprobs) != len(prompt.CHOICES):
            return [Outcome(None, error="the engine gave no log-probabilities of the digits")]
        rating, outside = expected(generation.logprobs)
        raw = f"{rating:.4f} outside {outside:.4f}"
        if not 1 - outside >= MIN_MASS or math.isnan(rating):
            return [Outcome(None, raw, LITTLE_MASS)]
        return [Outcome(rating, raw)]

    def value_of(self, raw: float) -> float:
        """The rating."""
        return raw


@dataclass(frozen=True)
class Likelihood:
    """Values are nats per token; `scored` is the place that comes last in the prompt."""

    scored: str

    scale = Scale.probability

    def sampling(self, n: int, attempt: int) -> Sampling:
        """The output means nothing; asking again would give the same."""
        return Sampling(max_tokens=1, score=True)

    def outcomes(self, generation: Generation, n: int) -> list[Outcome]:
        """Of the prompt alone: what the same text has by itself is taken off by the caller (`gain`)."""
        nats = per_token(generation.logprobs)
        if not math.isfinite(nats):
            return [Outcome(None, error="the engine gave no log-probabilities of the prompt")]
        return [Outcome(nats, f"{nats:.5f}")]

    def value_of(self, raw: float) -> float:
        """The logistic of the gain: a probability that is monotone in it, calibrated only by a calibration file."""
        return logistic(raw)


def gain(outcome: Outcome, alone: Outcome) -> Outcome:
    """What the other text adds to the scored one; an error of either is an error."""
    if outcome.value is None or alone.value is None:
        return outcome if outcome.value is None else alone
    nats = outcome.value - alone.value
    return Outcome(nats, f"{nats:.5f}")


def joined(windows: Sequence[Outcome]) -> Outcome:
    """Of the windows of a document the highest; a failed or unread one among them could have been higher."""
    valued = [(w.value, w) for w in windows if w.value is not None]
    if len(valued) < len(windows):
        return min((w for w in windows if w.value is None), key=lambda w: not w.error)
    return max(valued, key=lambda pair: pair[0])[1]
