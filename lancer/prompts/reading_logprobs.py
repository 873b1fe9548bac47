"""Log-probabilities → what they say of a rating, without a word being written.

`expected`: the mean of the ratings under the model's own distribution over the digits (Liu et al., 2023, "G-Eval",
section 2): finer than the one digit that decoding would pick.
`likelihood`: how much more likely one text becomes by the other, per token. A model too small to rate can do this
(query likelihood, Ponte and Croft, 1998; with language models Sachan et al., 2022, "Improving Passage Retrieval with
Zero-Shot Question Generation"); what the text costs by itself is taken off, so that common questions do not seem
answered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from lancer.prompts.reading import SCALE

LITTLE_MASS: Final = "little_mass"  # the reason of what is unread by this rule
MIN_MASS: Final = 0.01  # below it the model was about to write something else, and the digits' order is chance


def expected(logprobs: Sequence[float], *, lowest: int = SCALE[0]) -> tuple[float, float]:
    """(expected rating, probability outside the digits), from natural log-probabilities of the digits in order.

    The rating is sum p_k k over p normalised to the digits; NaN when none of them has any probability.
    """
    highest = max(logprobs)
    if not math.isfinite(highest):
        return math.nan, 1.0
    weights = [math.exp(p - highest) for p in logprobs]
    rating = sum(k * w for k, w in enumerate(weights, lowest)) / sum(weights)
    return rating, max(0.0, 1.0 - sum(map(math.exp, logprobs)))


def per_token(logprobs: Sequence[float]) -> float:
    """The mean, in nats; NaN for no token."""
    return math.fsum(logprobs) / len(logprobs) if logprobs else math.nan


def logistic(nats: float) -> float:
    """1 / (1 + e^-x): 0 nats, the text is no more likely than without the other, is .5. Monotone, not calibrated."""
    return 1.0 / (1.0 + math.exp(-nats)) if nats >= 0 else math.exp(nats) / (1.0 + math.exp(nats))
