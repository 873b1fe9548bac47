"""Pairs per second of the cross-encoder against sentence-transformers: `python -m tests.benchmarks.estimate [--json]`.

MiniLM with the head of `cross_encoder_training`, on 10 queries × 1,000 pairs of `dl19-subquestions`. All three take
turns query by query, and ratios are medians over queries, so that a busy machine slows them alike:

    ratio_fp32      float32 packs against `sentence_transformers.CrossEncoder.predict` (float32), in seconds
    ratio_bf16      bfloat16 packs against it
    ratio           of the type that is the faster one on this processor: `dtype`
    max_abs_diff    of its probabilities from those of sentence-transformers; `max_abs_diff_{fp32,bf16}` of each type
    same_side       share of its cells on the same side of .3, or of the median where that is less

`cpu_ratio…` compare processor seconds. `--queries N` takes fewer, `--documents N` fewer pairs of each (10 a document).
`--scale` instead gives pairs per second and memory from 10 to 200 queries (100 pairs each, 4 queries to a call).
`--profile` instead says where the time of one thread goes: floating point operations per second against what a bare
matrix product of the model's shape reaches, and the shares of the kinds of work. `--dtype` measures one type, float32
for these two unless it is given: bfloat16 without instructions for it takes many minutes.

The next limit is arithmetic, 1.8 GFLOP per pair of 97 tokens. Profile and roofline of one thread: an EPYC with
AVX512_BF16 has in float32 188 GFLOP/s of the 252 of bare products with packed weights (.75; .81 of the time in linear
layers, .15 in attention, .02 in norms), in bfloat16 283 of 528 (.54; .61, .26 and .05); tokenising and assembling pairs
.001. A Xeon with AVX512_VNNI and no AMX has 102 of 130 in float32 and is three times slower in bfloat16: no more than
2.8 times sentence-transformers is in reach there. 8-bit products (torch._int_mm, a scale per token and per
channel) are three to five times as fast, but move probabilities by up to .07 (.027 where only the widening layers use
them) and 1 to 2 % of the cells across the median: not used.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lancer.engines.cross_encoder import CrossEncoder, CrossEncoderConfig
from lancer.engines.packed_encoders import Linear, Placement
from lancer.engines.protocols import Block
from tests.benchmarks import dl19
from tests.benchmarks.cross_encoder_training import SHARED, trained_cross_encoder

THRESHOLD = 0.3
Dtype = Literal["float32", "bfloat16"]
SHORT: dict[Dtype, str] = {"float32": "fp32", "bfloat16": "bf16"}
SCALES = (10, 50, 100, 200)
SHARD = 4  # queries to a call
SCALE_DOCUMENTS = 10


def read_blocks(folder: Path, queries: int, documents: int = 100) -> list[Block]:
    """The BM25 candidates × sub-questions of the first queries."""
    texts, sub_questions = dl19.read_texts(folder), dl19.read_sub_questions(folder)
    candidates = dl19.read_candidates(folder)
    return [
        Block(tuple(texts[d] for d in candidates[q][:documents]), tuple(sub_questions[q].values()))
        for q in itertools.islice(sub_questions, queries)
    ]


def compare(model: str, blocks: list[Block], dtypes: Sequence[Dtype]) -> dict[str, Any]:
    """All of them over the same blocks; the keys are those of the JSON output."""
    try:
        from sentence_transformers import CrossEncoder as Reference
    except ImportError:
        sys.exit("the comparison needs sentence-transformers: `pip install --no-deps sentence-transformers`")
    reference = Reference(model, device="cpu")

    def predict(block: Block) -> Any:
        pairs = [(q, d) for d in block.documents for q in block.sub_questions]
        scores = reference.predict(pairs, show_progress_bar=False)
        return scores.reshape(len(block.documents), len(block.sub_questions))

    ways: dict[str, Callable[[Block], Any]] = {"reference": predict}
    ways |= {SHORT[dtype]: _scorer(CrossEncoderConfig(model=model, dtype=dtype)) for dtype in dtypes}
    for way in ways.values():
        way(Block(blocks[0].documents[:4], blocks[0].sub_questions[:4]))
    wall: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    scores: dict[str, list[Any]] = {name: [] for name in ways}
    for block in blocks:
        for name, way in ways.items():
            started, busy = time.perf_counter(), time.process_time()
            scores[name].append(way(block).ravel())
            wall[name].append(time.perf_counter() - started)
            processor[name].append(time.process_time() - busy)
    of = {name: np.concatenate(scores[name]) for name in ways}
    reference_scores = of["reference"]
    median = float(np.median(reference_scores))
    ratios = {name: _ratio(wall["reference"], wall[name]) for name in ways if name != "reference"}
    faster = max(ratios, key=lambda name: ratios[name])
    differences = {name: float(np.abs(of[name] - reference_scores).max()) for name in ratios}
    return {
        "pairs": len(reference_scores),
        "std": float(reference_scores.std()),
        **{f"pairs_per_s_{name}": len(reference_scores) / sum(wall[name]) for name in ways},
        "dtype": faster,
        "ratio": ratios[faster],
        **{f"ratio_{name}": ratio for name, ratio in ratios.items()},
        **{f"cpu_ratio_{name}": _ratio(processor["reference"], processor[name]) for name in ratios},
        "max_abs_diff": differences[faster],
        **{f"max_abs_diff_{name}": difference for name, difference in differences.items()},
        "same_side": min(float(np.mean((of[faster] > at) == (reference_scores > at))) for at in (THRESHOLD, median)),
    }


def _scorer(config: CrossEncoderConfig) -> Callable[[Block], Any]:
    engine = CrossEncoder(config)
    return lambda block: engine.score([block])[0].scores


def _ratio(slow: list[float], fast: list[float]) -> float:
    """The median over queries."""
    return float(np.median(np.divide(slow, fast)))


def scale(model: str, blocks: list[Block], dtype: Dtype) -> dict[str, Any]:
    """Pairs per second and resident memory (MiB) as queries go by; more queries than the data has come round again."""
    engine = CrossEncoder(CrossEncoderConfig(model=model, dtype=dtype))
    queries = itertools.cycle(blocks)
    figures: dict[str, Any] = {}
    done = 0
    for goal in SCALES:
        pairs, started = 0, time.perf_counter()
        while done < goal:
            shard = list(itertools.islice(queries, min(SHARD, goal - done)))
            engine.score(shard)
            done += len(shard)
            pairs += sum(len(b.documents) * len(b.sub_questions) for b in shard)
        figures[f"pairs_per_s_to_{goal}"] = pairs / (time.perf_counter() - started)
        figures[f"rss_mib_at_{goal}"] = _resident_mib()
    return figures


def profile(model: str, blocks: list[Block], dtype: Dtype) -> dict[str, Any]:
    """Where the processor time of the packs goes, on one thread."""
    import torch
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity
    from transformers import AutoConfig

    engine = CrossEncoder(CrossEncoderConfig(model=model, dtype=dtype, threads=1))
    engine.score(blocks[:1])
    started, processor = time.perf_counter(), time.process_time()
    scored = engine.score(blocks)
    seconds, processor = time.perf_counter() - started, time.process_time() - processor
    pairs, tokens = sum(s.scores.size for s in scored), sum(s.tokens for s in scored)
    everywhere = _ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], experimental_config=everywhere) as profiler:
        engine.score(blocks[:1])
    spent = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
    total = sum(spent.values())
    config = AutoConfig.from_pretrained(model)
    rate, peak = _flops(config, tokens, pairs) / processor, _peak(config, getattr(torch, dtype))
    return {
        "pairs_per_processor_s": pairs / processor,
        "tokens_per_pair": tokens / pairs,
        "gflop_per_pair": _flops(config, tokens, pairs) / pairs / 1e9,
        "gflop_per_s": rate / 1e9,
        "gflop_per_s_of_a_bare_product": peak / 1e9,
        "gflop_per_s_of_a_bare_product_fp32": _peak(config, torch.float32) / 1e9,
        "share_of_peak": rate / peak,
        "share_before_the_model": 1 - sum(s.run_s for s in scored) / seconds,
        **{f"share of {k}": v / total for k, v in sorted(spent.items(), key=lambda x: -x[1])[:6]},
    }


def _flops(config: Any, tokens: int, pairs: int) -> float:
    """Of the linear layers and attention; all but keys and values of the last layer is for one token per pair."""
    hidden, wide, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    length = tokens / pairs
    of_token = 2 * (4 * hidden * hidden + 2 * hidden * wide) + 4 * hidden * length
    last = tokens * 4 * hidden * hidden + pairs * (2 * (2 * hidden * hidden + 2 * hidden * wide) + 4 * hidden * length)
    return float((layers - 1) * tokens * of_token + last)


def _peak(config: Any, dtype: Any) -> float:
    """The best of many products (1024 tokens × hidden × intermediate), by PyTorch's own way or with packed weights."""
    import torch

    torch.set_num_threads(1)
    x, w = (torch.randn(rows, config.hidden_size).to(dtype) for rows in (1024, config.intermediate_size))
    best = float("inf")
    for layer in (Linear(w, None, packed=packed) for packed in {False, Placement("cpu", dtype).packs}):
        for _ in range(200):
            started = time.perf_counter()
            layer(x)
            best = min(best, time.perf_counter() - started)
    return float(2 * 1024 * config.hidden_size * config.intermediate_size / best)


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _lines(figures: dict[str, Any]) -> Iterator[str]:
    for key, value in figures.items():
        yield f"{key:32} {value:.5g}" if isinstance(value, int | float) else f"{key:32} {value}"


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--queries", type=int, default=10)
    parser.add_argument("--documents", type=int, default=100)
    parser.add_argument("--scale", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--dtype", choices=tuple(SHORT), help="this one only")
    options = parser.parse_args()
    if not SHARED.is_dir():
        sys.exit(f"needs the real data in {SHARED}")
    logging.basicConfig(level=logging.WARNING)
    model = str(trained_cross_encoder())
    folder = SHARED / "dl19-subquestions"
    if options.scale:
        figures = scale(model, read_blocks(folder, 22, SCALE_DOCUMENTS), options.dtype or "float32")
    elif options.profile:
        blocks = read_blocks(folder, options.queries, options.documents)
        figures = profile(model, blocks, options.dtype or "float32")
    else:
        blocks = read_blocks(folder, options.queries, options.documents)
        figures = compare(model, blocks, [options.dtype] if options.dtype else list(SHORT))
    print(json.dumps(figures) if options.json else "\n".join(_lines(figures)))


if __name__ == "__main__":
    main()
