"""The scoring core needs torch, transformers and numpy only, and says where it cannot go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lancer.engines.packed_scoring import PackedScorer
from lancer.engines.pair_packing import Pack
from lancer.errors import CallFailed
from tests.engines.test_cross_encoder import build

ALONE = """
import sys

class Absent:
    names = {"pydantic", "pydantic_core", "ray", "vllm", "pyarrow", "pyserini", "jnius", "ir_measures"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from lancer.engines.packed_scoring import PackedScorer, Settings
loaded = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names - set(sys.builtin_module_names)
assert {name for name in loaded if not name.startswith(("_", "sitecustomize"))} <= {"lancer", "numpy"}, loaded

import torch, transformers
from lancer.engines.packed_classifiers import packed_classifier
from lancer.engines.packed_encoders import Placement
from lancer.engines.protocols import Block

folder = sys.argv[1]
model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
place = Placement("cpu", torch.float32)
scorer = PackedScorer(tokenizer, packed_classifier(model, place), Settings(max_tokens=128, batch_tokens=512), threads=1)
(scores,) = scorer.score([Block(("iron tower", "tall"), ("how tall", "who", "what"))])
expected = model(**tokenizer("who", "tall", return_tensors="pt")).logits.sigmoid().item()
assert scores.shape == (2, 3) and abs(scores[1, 1] - expected) < 1e-5
assert not loaded & Absent.names
"""


def test_nothing_but_torch_transformers_and_numpy_is_needed(tmp_path: Path) -> None:
    folder = build("bert", tmp_path, num_labels=1)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(folder)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError("full"), r"no memory for one pair of 7 tokens; lower max_tokens: full"),
        (RuntimeError("odd"), r"the cross-encoder failed: odd"),
    ],
)
def test_a_pair_that_cannot_be_scored_is_a_failed_call(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    """Of that call: the scorer goes on with others."""

    class Lengths:
        total = np.array([7])

        def pack(self, rows: object) -> None:
            return None

    def fails(scorer: PackedScorer, pack: Pack) -> None:
        raise error

    monkeypatch.setattr(PackedScorer, "_activate", fails)
    scorer = PackedScorer.__new__(PackedScorer)
    scorer._most = 512
    with pytest.raises(CallFailed, match=said):
        scorer._of_pack(Lengths(), np.array([0]))  # type: ignore[arg-type]
