"""Pairs per second of our cross-encoder core against sentence-transformers: the first part of `gpu.sh`.

Random weights in the shapes of MiniLM-L6 and ModernBERT-base, bfloat16, 512 tokens at most; needs torch, transformers,
sentence-transformers and numpy. A block is one query of real use, 100 documents × 10 sub-questions. The ways take turns
block by block, ratios are medians over blocks:

    full, mixed                 documents that fill the limit; documents of 32 tokens up to the limit
    pairs_per_s_reference       `CrossEncoder.predict` at its default batch size of 32
    pairs_per_s_reference_256   at 256, where a GPU is better filled
    ratio                       ours to the better of the two
    max_abs_diff                of our bfloat16 probabilities from float32 ones of sentence-transformers

`--tiny` is for a CPU and for tests: small shapes, one block, a few seconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from lancer.engines.packed_classifiers import packed_classifier
from lancer.engines.packed_encoders import Placement
from lancer.engines.packed_scoring import PackedScorer, Settings
from lancer.engines.protocols import Block

WORDS: Final = 30_000
SUB_QUESTION_TOKENS: Final = 12


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    documents: int = 100
    sub_questions: int = 10
    max_tokens: int = 512
    blocks: int = 3
    batch_tokens: int = 65_536
    sizes: tuple[tuple[str, Any], ...] = ()  # what is smaller in every model


TINY: Final = Scale(
    documents=6,
    sub_questions=3,
    max_tokens=64,
    blocks=1,
    batch_tokens=1024,
    sizes=(("hidden_size", 64), ("num_hidden_layers", 2), ("num_attention_heads", 4), ("intermediate_size", 96)),
)


def build(shape: str, folder: Path, scale: Scale) -> Path:
    """A random classifier of this shape, and a tokenizer that makes one token of a word."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        ModernBertConfig,
        ModernBertForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: i for i, word in enumerate([*specials, *(f"w{i}" for i in range(WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    second = ":1" if shape == "minilm" else ""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] $B{second} [SEP]{second}",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if shape == "minilm" else [])]
    fast: Any = PreTrainedTokenizerFast
    fast(
        tokenizer_object=tokenizer, model_input_names=inputs, model_max_length=scale.max_tokens, **names
    ).save_pretrained(folder)
    torch.manual_seed(0)
    ids = {"vocab_size": len(vocabulary), "pad_token_id": 0, "num_labels": 1}
    model: Any
    if shape == "minilm":
        sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
        model = BertForSequenceClassification(BertConfig(**(sizes | dict(scale.sizes) | ids)))
    else:
        marks = {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
        model = ModernBertForSequenceClassification(ModernBertConfig(**(dict(scale.sizes) | ids | marks)))
    model.save_pretrained(folder)
    return folder


def blocks_of(scale: Scale, *, mixed: bool) -> list[Block]:
    """Random words."""
    random = np.random.default_rng(1)
    longest = scale.max_tokens - SUB_QUESTION_TOKENS - 3

    def text(tokens: int) -> str:
        return " ".join(f"w{i}" for i in random.integers(0, WORDS, tokens))

    return [
        Block(
            tuple(
                text(int(random.integers(32, longest + 1)) if mixed else longest + 1) for _ in range(scale.documents)
            ),
            tuple(text(SUB_QUESTION_TOKENS) for _ in range(scale.sub_questions)),
        )
        for _ in range(scale.blocks)
    ]


def measure(shape: str, scale: Scale, device: str) -> dict[str, Any]:
    """The figures of one shape; the keys are those of the JSON output."""
    import torch
    from sentence_transformers import CrossEncoder
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    with tempfile.TemporaryDirectory() as name:
        folder = build(shape, Path(name), scale)
        # Without flash-attn, which few machines have, transformers takes PyTorch's attention.
        options = {"attn_implementation": "sdpa"}
        reference = CrossEncoder(
            str(folder),
            device=device,
            max_length=scale.max_tokens,
            model_kwargs=options | {"dtype": torch.bfloat16},
        )
        exact = CrossEncoder(str(folder), device=device, max_length=scale.max_tokens, model_kwargs=options)
        place = Placement(device, torch.bfloat16)
        classifier = packed_classifier(AutoModelForSequenceClassification.from_pretrained(folder).eval(), place)
        assert classifier is not None
        settings = Settings(max_tokens=scale.max_tokens, batch_tokens=scale.batch_tokens)
        ours = PackedScorer(AutoTokenizer.from_pretrained(folder), classifier, settings, threads=2)

    def predict(model: Any, batch: int, block: Block) -> Any:
        pairs = [(q, d) for d in block.documents for q in block.sub_questions]
        scores = model.predict(pairs, batch_size=batch, show_progress_bar=False)
        return np.asarray(scores, np.float32).reshape(len(block.documents), len(block.sub_questions))

    ways: dict[str, Callable[[Block], Any]] = {
        "reference": lambda block: predict(reference, 32, block),
        "reference_256": lambda block: predict(reference, 256, block),
        "ours": lambda block: ours.score([block])[0],
    }
    figures: dict[str, Any] = {"varlen": place.varlen}
    for kind in ("full", "mixed"):
        blocks = blocks_of(scale, mixed=kind == "mixed")
        few = Block(blocks[0].documents[:10], blocks[0].sub_questions[:4])
        for way in ways.values():  # warms up
            way(few)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for block in blocks:
            for name, way in ways.items():
                started = time.perf_counter()
                way(block)  # the scores are on the CPU when it returns
                seconds[name].append(time.perf_counter() - started)
        pairs = scale.documents * scale.sub_questions
        best = np.minimum(seconds["reference"], seconds["reference_256"])
        figures[kind] = {f"pairs_per_s_{name}": pairs / float(np.median(seconds[name])) for name in ways} | {
            "ratio": float(np.median(best / np.array(seconds["ours"]))),
            "max_abs_diff": float(np.abs(ways["ours"](few) - predict(exact, 32, few)).max()),
            "max_abs_diff_reference": float(np.abs(ways["reference"](few) - predict(exact, 32, few)).max()),
        }
    if device == "cuda":
        figures["gpu_gib"] = torch.cuda.max_memory_allocated() / 2**30
        torch.cuda.reset_peak_memory_stats()
    ours.close()
    gc.collect()
    return figures


def main() -> None:
    """Prints the figures as JSON, one line per shape as it is done."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--shapes", nargs="+", choices=("minilm", "modernbert"), default=("minilm", "modernbert"))
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    for shape in options.shapes:
        figures = measure(shape, TINY if options.tiny else Scale(), device)
        print(json.dumps({"benchmark": "scoring", "shape": shape, "device": name, **figures}), flush=True)


if __name__ == "__main__":
    main()
