"""What judging costs by the layout of its prompts: `python -m tests.benchmarks.judging [--json]`.

SmolLM2 in vLLM on this machine's CPU, 400 pairs of `dl19-subquestions` (4 queries × 10 documents × 10 sub-questions).
Rubric and readout (the log-probabilities of "0" to "5" as the first token) are the same in all layouts of one pair per
prompt, and so is the order: query, document, sub-question. The layouts take turns query by query, and back again:

    published_default   question before document, at vLLM's defaults: cache blocks of 128 tokens
    published_32        the same in blocks of 32
    shared_prefix       document before question, padded to a block of 32
    per_document        ten ratings as JSON in one prompt, in blocks of 32

`pairs_per_s_ratio` is shared_prefix to published_default, `cpu_ratio` the same in processor seconds, `…_32` to
published_32. Both follow the computed tokens per pair. In `published` the prompts of one sub-question share what comes
before the document, which just fills one default block. `auc_…` says how
well likelihood tells pairs of grade 4 and 5 from the rest, per token of what comes second in the layout: the
sub-question given the document less without it, or the document given the sub-question less without it; intervals are
of a bootstrap over documents. `overhead`: see `judging_overhead`. `--layouts` or `--overhead` measures one part only;
`--queries` and `--documents` take fewer.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Sequence
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
ENGINE = VllmConfig(model="embedded:smollm2", max_model_len=2048, kv_cache_gib=1.5)

Floats = npt.NDArray[np.float64]


@dataclass
class Way:
    """A layout on an engine, and what it took so far."""

    layout: str
    engine: str
    seconds: float = 0.0
    processor_s: float = 0.0
    pairs: int = 0
    answers: list[Generation] = field(default_factory=list)

    def run(self, engine: Served, judged: Judged) -> None:
        """Asks for all pairs of a query."""
        prompts = prompts_of(judged, self.layout)
        sampling = DIGIT
        if LAYOUTS[self.layout].per_document:
            n = len(judged.sub_questions)
            sampling = Sampling(max_tokens=10 * n, json_schema=json.dumps(schema(n)))
        answers, seconds, processor_s = engine.call(prompts, sampling)
        self.seconds, self.processor_s = self.seconds + seconds, self.processor_s + processor_s
        self.pairs += len(judged.documents) * len(judged.sub_questions)
        self.answers += answers

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


def serve(config: VllmConfig) -> Any:
    """In a process of its own: prompts → generations."""
    logging.disable(logging.WARNING)
    return VllmEngine(config).generate


def measure_layouts(judged: Sequence[Judged]) -> dict[str, Any]:
    """Speed and AUC; the keys are those of the JSON output. The last query warms the engines up."""
    *measured, warm = judged
    ways = {
        "published_default": Way("published", "128"),
        "published_32": Way("published", "32"),
        "shared_prefix": Way("shared-prefix", "32"),
        "per_document": Way("per-document", "32"),
    }
    with ExitStack() as stack:
        engines = {
            size: stack.enter_context(Served(serve, ENGINE.model_copy(update={"block_size": int(size)})))
            for size in ("128", "32")
        }
        for way in ways.values():
            Way(way.layout, way.engine).run(engines[way.engine], warm)
        for number, one in enumerate(measured):
            for way in list(ways.values())[:: 1 if number % 2 == 0 else -1]:
                way.run(engines[way.engine], one)
        auc = {
            f"auc_{layout.replace('-', '_')}": auc_with_interval(measured, likelihoods(measured, layout, engines["32"]))
            for layout in ("shared-prefix", "published")
        }
    figures = {name: way.figures() for name, way in ways.items()}
    shared = figures["shared_prefix"]
    errors = sorted({g.error for way in ways.values() for g in way.answers} - {""})
    return {
        "pairs": ways["shared_prefix"].pairs,
        **{
            f"{name}{suffix}": shared[of] / figures[base][of]
            for suffix, base in (("", "published_default"), ("_32", "published_32"))
            for name, of in (("pairs_per_s_ratio", "pairs_per_s"), ("cpu_ratio", "pairs_per_processor_s"))
        },
        "cached_share": shared["cached_share"],
        **figures,
        **auc,
        "errors": errors,
    }


def likelihoods(judged: Sequence[Judged], layout: str, engine: Served) -> Floats:
    """log P(second | first) - log P(second), per token, of shape (all documents, sub_questions)."""
    of = LAYOUTS[layout]
    second = "sub_question" if layout == "shared-prefix" else "document"

    def score(request: str, pairs: Sequence[tuple[str, str]]) -> list[float]:
        filled = [of.prompt(request=request, document=d, sub_questions=[q]) for d, q in pairs]
        answers, *_ = engine.call([messages_of(prompt, scored=second) for prompt in filled], SCORE)
        return [sum(g.logprobs) / len(g.logprobs) for g in answers]

    rows: list[Floats] = []
    for one in judged:
        pairs = [(d, q) for d in one.documents for q in one.sub_questions]
        given = np.reshape(score(one.request, pairs), (len(one.documents), len(one.sub_questions)))
        if second == "sub_question":
            alone = np.array(score(one.request, [("", q) for q in one.sub_questions]))[None, :]
        else:
            alone = np.array(score(one.request, [(d, "") for d in one.documents]))[:, None]
        rows.append(given - alone)
    return np.concatenate(rows)


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
    part.add_argument("--overhead", action="store_true")
    parser.add_argument("--queries", type=int, default=QUERIES, help="of the layouts")
    parser.add_argument("--documents", type=int, default=DOCUMENTS, help="of a query")
    options = parser.parse_args()
    if not SHARED.is_dir():
        sys.exit(f"needs the real data in {SHARED}")
    folder = SHARED / "dl19-subquestions"
    figures: dict[str, Any] = {}
    if not options.overhead:
        figures |= measure_layouts(read_judged(folder, options.queries + 1, options.documents))
    if not options.layouts:
        figures |= measure_overhead(read_judged(folder, 22, options.documents), ENGINE)
    print(json.dumps(figures) if options.json else "\n".join(_lines(figures)))


if __name__ == "__main__":
    main()
