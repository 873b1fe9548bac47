"""The CPU form of what runs on a GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lancer.engines.packed_classifiers import packed_classifier
from lancer.engines.packed_encoders import Placement
from lancer.engines.packed_scoring import PackedScorer, Settings
from tests.benchmarks.gpu_scoring import TINY, blocks_of, build

torch = pytest.importorskip("torch")
SCRIPT = Path(__file__).with_name("gpu.sh")


@pytest.mark.parametrize("shape", ["minilm", "modernbert"])
def test_the_models_of_the_benchmark_are_scored_as_transformers_does(shape: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = build(shape, tmp_path, TINY)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    (block,) = blocks_of(TINY, mixed=True)
    full = blocks_of(TINY, mixed=False)[0]
    assert len(tokenizer(full.sub_questions[0], full.documents[0])["input_ids"]) == TINY.max_tokens + 1
    pairs = [(q, d) for d in block.documents for q in block.sub_questions]
    with torch.inference_mode():
        expected = [model(**tokenizer(q, d, return_tensors="pt")).logits.sigmoid().item() for q, d in pairs]
    place = Placement("cpu", torch.float32)
    classifier = packed_classifier(model, place)
    assert classifier is not None
    scorer = PackedScorer(tokenizer, classifier, Settings(max_tokens=TINY.max_tokens, batch_tokens=512), threads=1)
    np.testing.assert_allclose(scorer.score([block])[0].ravel(), expected, atol=1e-5)


@pytest.mark.vllm
def test_the_script_prints_a_line_of_json_per_part() -> None:
    if importlib.util.find_spec("sentence_transformers") is None:
        pytest.skip("needs sentence-transformers, which is no dependency: pip install --no-deps sentence-transformers")
    done = subprocess.run(
        [str(SCRIPT), "--tiny"],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=360,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *scoring, judging = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [figures["shape"] for figures in scoring] == ["minilm", "modernbert"]
    for figures in scoring:
        for kind in ("full", "mixed"):
            assert figures[kind]["ratio"] > 0
            assert figures[kind]["max_abs_diff"] < 0.02
    assert judging["tokens_per_s_ours"] > 0
    assert judging["ratio"] > 0
