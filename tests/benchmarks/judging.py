"""What judging costs by the layout of its prompts: `python -m tests.benchmarks.judging [--json]`.

SmolLM2 in vLLM on this machine's CPU, 400 pairs of `dl19-subquestions` (4 queries × 10 documents × 10 sub-questions).
Rubric and readout (`expected`: the log-probabilities of "0" to "5" as the first token) are the same in all layouts of
one pair per prompt, and so is the order: query, document, sub-question. The ways take turns query by query, and back:

    published_default   question before document, at vLLM's defaults: cache blocks of 128 tokens
    published_32        the same in blocks of 32
    shared_prefix       document before question, padded to a block of 32
    per_document        ten ratings as JSON in one prompt, in blocks of 32
    likelihood_…        published_default and shared_prefix by the other readout: the log-probability of what comes
                        second in the layout (the document, or the sub-question) less that without the other, per token

`pairs_per_s_ratio` is shared_prefix to published_default, `cpu_ratio` the same in processor seconds, `…_32` to
published_32, `likelihood_…` of the two ways by likelihood. They follow the computed tokens per pair. In `published` the
prompts of one sub-question share what comes before the document, which just fills one default block, but the document,
which likelihood scores there, is never cached. `auc_…`: how well likelihood tells pairs of grade 4 and 5 from the rest;
intervals are of a bootstrap over documents. `overhead`: see `judging_overhead`. `--layouts`, `--likelihood` or
`--overhead` measures one part only; `--queries` and `--documents` take fewer.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lancer.engines.protocols import Generation, Message, Sampling
from lancer.engines.vllm_engine import VllmConfig, VllmEngine
from lancer.evaluation.calibration import auc
from lancer.prompts.judge import CHOICES, LAYOUTS, messages_of, schema
from tests.benchmarks.cross_encoder_training import SHARED
from tests.benchmarks.judging_data import Judged, read_judged
from tests.benchmarks.judging_overhead import measure_overhead
from tests.benchmarks.processes import Served

QUERIES, DOCUMENTS = 4, 10
RELEVANT = 4
RESAMPLES = 2000
DIGIT = Sampling(max_tokens=1, choice=CHOICES, logprobs_of=CHOICES)
SCORE = Sampling(max_tokens=1, score=True)
SECOND = {"shared-prefix": "sub_question", "published": "document"}  # what comes second, which likelihood scores
ENGINE = VllmConfig(model="embedded:smollm2", max_model_len=2048, kv_cache_gib=1.5)

Floats = npt.NDArray[np.float64]


@dataclass
class Way:
    """A layout on an engine by a readout, and what it took so far; `gains`: likelihood's values, a matrix per query."""

    layout: str
    engine: str
    readout: str = "expected"
    seconds: float = 0.0
    processor_s: float = 0.0
    pairs: int = 0
    answers: list[Generation] = field(default_factory=list)
    gains: list[Floats] = field(default_factory=list)

    def run(self, engine: Served, judged: Judged) -> None:
        """Asks for all pairs of a query."""
        likelihood = self.readout == "likelihood"
        prompts = scored_prompts(judged, self.layout) if likelihood else prompts_of(judged, self.layout)
        sampling = SCORE if likelihood else DIGIT
        if LAYOUTS[self.layout].per_document:
            n = len(judged.sub_questions)
            sampling = Sampling(max_tokens=10 * n, json_schema=json.dumps(schema(n)))
        answers, seconds, processor_s = engine.call(prompts, sampling)
        self.seconds, self.processor_s = self.seconds + seconds, self.processor_s + processor_s
        self.pairs += len(judged.documents) * len(judged.sub_questions)
        self.answers += answers
        if likelihood:
            self.gains.append(gains_of(answers, judged, self.layout))

    def figures(self) -> dict[str, float]:
        """Of all pairs so far."""
        tokens, cached = (sum(getattr(g, n) for g in self.answers) for n in ("prompt_tokens", "cached_tokens"))
        return {
            "pairs_per_s": self.pairs / self.seconds,
            "pairs_per_processor_s": self.pairs / self.processor_s,
            "cached_share": cached / tokens,
            "prompt_tokens_per_pair": tokens / self.pairs,
            "computed_tokens_per_pair": (tokens - cached) / self.pairs,
            "output_tokens_per_pair": sum(g.output_tokens for g in self.answers) / self.pairs,
        }


def prompts_of(judged: Judged, layout: str) -> list[list[Message]]:
    """One per pair in the order (document, sub-question), or one per document."""
    of = LAYOUTS[layout]
    asked = [judged.sub_questions] if of.per_document else [(q,) for q in judged.sub_questions]
    return [
        messages_of(of.prompt(request=judged.request, document=document, sub_questions=questions))
        for document in judged.documents
        for questions in asked
    ]


def scored_prompts(judged: Judged, layout: str) -> list[list[Message]]:
    """One per pair in the order (document, sub-question), then one per scored text alone."""
    of, second = LAYOUTS[layout], SECOND[layout]
    pairs = [(d, q) for d in judged.documents for q in judged.sub_questions]
    alone = [("", q) for q in judged.sub_questions] if second == "sub_question" else [(d, "") for d in judged.documents]
    return [
        messages_of(of.prompt(request=judged.request, document=d, sub_questions=[q]), scored=second)
        for d, q in pairs + alone
    ]


def gains_of(answers: Sequence[Generation], judged: Judged, layout: str) -> Floats:
    """log P(second | first) - log P(second), per token, of shape (documents, sub_questions)."""
    nats = np.array([sum(answer.logprobs) / len(answer.logprobs) for answer in answers])
    shape = len(judged.documents), len(judged.sub_questions)
    pairs, alone = nats[: shape[0] * shape[1]].reshape(shape), nats[shape[0] * shape[1] :]
    gains: Floats = pairs - (alone[None, :] if SECOND[layout] == "sub_question" else alone[:, None])
    return gains


def serve(config: VllmConfig) -> Any:
    """In a process of its own: prompts → generations."""
    logging.disable(logging.WARNING)
    return VllmEngine(config).generate


def measure(ways: Sequence[Way], judged: Sequence[Judged]) -> None:
    """On engines of their own; the last query warms these up."""
    *measured, warm = judged
    with ExitStack() as stack:
        engines = {
            size: stack.enter_context(Served(serve, ENGINE.model_copy(update={"block_size": int(size)})))
            for size in ("128", "32")
        }
        for way in ways:
            Way(way.layout, way.engine, way.readout).run(engines[way.engine], warm)
        for number, one in enumerate(measured):
            for way in ways[:: 1 if number % 2 == 0 else -1]:
                way.run(engines[way.engine], one)


def measure_layouts(judged: Sequence[Judged]) -> dict[str, Any]:
    """Speed by the rating readouts; the keys are those of the JSON output."""
    ways = {
        "published_default": Way("published", "128"),
        "published_32": Way("published", "32"),
        "shared_prefix": Way("shared-prefix", "32"),
        "per_document": Way("per-document", "32", "digit"),
    }
    measure(list(ways.values()), judged)
    figures = {name: way.figures() for name, way in ways.items()}
    return {
        "pairs": ways["shared_prefix"].pairs,
        **_ratios(figures, ""),
        **{f"{name}_32": ratio for name, ratio in _ratios(figures, "", "published_32").items()},
        "cached_share": figures["shared_prefix"]["cached_share"],
        **figures,
        "errors": _errors(ways.values()),
    }


def measure_likelihood(judged: Sequence[Judged]) -> dict[str, Any]:
    """Speed and AUC by the other readout, on engines that have cached nothing of the first."""
    ways = {
        "likelihood_published_default": Way("published", "128", "likelihood"),
        "likelihood_shared_prefix": Way("shared-prefix", "32", "likelihood"),
    }
    measure(list(ways.values()), judged)
    figures = {name: way.figures() for name, way in ways.items()}
    return {
        **_ratios(figures, "likelihood_"),
        **figures,
        **{
            f"auc_{way.layout.replace('-', '_')}": auc_with_interval(judged[:-1], np.concatenate(way.gains))
            for way in ways.values()
        },
        "likelihood_errors": _errors(ways.values()),
    }


def _ratios(figures: dict[str, dict[str, float]], prefix: str, base: str = "published_default") -> dict[str, float]:
    return {
        f"{prefix}{name}": figures[f"{prefix}shared_prefix"][of] / figures[f"{prefix}{base}"][of]
        for name, of in (("pairs_per_s_ratio", "pairs_per_s"), ("cpu_ratio", "pairs_per_processor_s"))
    }


def _errors(ways: Iterable[Way]) -> list[str]:
    return sorted({answer.error for way in ways for answer in way.answers} - {""})


def auc_with_interval(judged: Sequence[Judged], scores: Floats) -> list[float]:
    """AUC of scores (documents, sub_questions) for grades of at least `RELEVANT`, and its 95 % interval."""
    positive = np.array([row for one in judged for row in one.grades]) >= RELEVANT
    random = np.random.default_rng(0)
    samples = []
    for _ in range(RESAMPLES):
        documents = random.integers(0, len(scores), len(scores))
        if positive[documents].any() and not positive[documents].all():
            samples.append(auc(scores[documents].ravel(), positive[documents].ravel()))
    low, high = np.percentile(samples, [2.5, 97.5])
    return [auc(scores.ravel(), positive.ravel()), float(low), float(high)]


def _lines(figures: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in figures.items():
        if isinstance(value, dict):
            yield from _lines(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix + key:45} {' '.join(f'{v:.4g}' if isinstance(v, float) else str(v) for v in value)}"
        else:
            yield f"{prefix + key:45} {value:.4g}"


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--layouts", action="store_true")
    part.add_argument("--likelihood", action="store_true")
    part.add_argument("--overhead", action="store_true")
    parser.add_argument("--queries", type=int, default=QUERIES, help="of the layouts")
    parser.add_argument("--documents", type=int, default=DOCUMENTS, help="of a query")
    options = parser.parse_args()
    if not SHARED.is_dir():
        sys.exit(f"needs the real data in {SHARED}")
    folder = SHARED / "dl19-subquestions"
    figures: dict[str, Any] = {}
    alone = options.layouts or options.likelihood or options.overhead
    if options.layouts or not alone:
        figures |= measure_layouts(read_judged(folder, options.queries + 1, options.documents))
    if options.likelihood or not alone:
        figures |= measure_likelihood(read_judged(folder, options.queries + 1, options.documents))
    if options.overhead or not alone:
        figures |= measure_overhead(read_judged(folder, 22, options.documents), ENGINE)
    print(json.dumps(figures) if options.json else "\n".join(_lines(figures)))


if __name__ == "__main__":
    main()
