"""A trained cross-encoder for measuring fidelity: MiniLM and a new head on the argument–key point labels of ArgKP.

No package holds a trained text cross-encoder, and on an untrained head every probability is near one half, so that
rounding cannot be seen. Bar-Haim et al. (2020) gave the labels. `python -m tests.benchmarks.cross_encoder_training`
trains once (six to fifteen minutes of one core) and keeps the model in the cache folder, under a digest of the recipe.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from lancer.engines.cache import building, cache_dir
from lancer.engines.embedded import resolve_model
from lancer.engines.product_rate import product_rates

SHARED: Final = Path(__file__).resolve().parents[2].parent / "shared" / "data"
FILES: Final = ("docs.jsonl.gz", "keypoints.tsv", "qrels.keypoints.txt.gz")


@dataclass(frozen=True)
class Recipe:
    """Everything that shapes the trained model. It trains until both `seconds` and `steps` have passed."""

    base: str = "embedded:minilm"
    seconds: float = 300
    steps: int = 1000
    matching: int = 5  # pairs in a step
    others: int = 11
    max_tokens: int = 96
    learning_rate: float = 1e-4  # 250 steps end at a loss of .461; 2e-4 .488, 5e-5 .543
    warmup: float = 0.1  # share of the training
    seed: int = 0


@dataclass(frozen=True)
class Labelled:
    """One human label: does the argument make the key point."""

    key_point: str
    argument: str
    matches: bool


def read_labels(folder: Path) -> list[Labelled]:
    """The 20,635 labelled pairs of `argkp-train`."""
    with gzip.open(folder / "docs.jsonl.gz", "rt", encoding="utf-8") as lines:
        arguments = {d["docid"]: d["text"] for d in map(json.loads, lines)}
    rows = (line.split("\t") for line in (folder / "keypoints.tsv").read_text("utf-8").splitlines())
    key_points = {row[1]: row[3] for row in rows}
    with gzip.open(folder / "qrels.keypoints.txt.gz", "rt", encoding="utf-8") as lines:
        labels = [line.split() for line in lines]
    return [Labelled(key_points[point], arguments[argument], label == "1") for _, point, argument, label in labels]


def trained_cross_encoder(data: Path = SHARED, recipe: Recipe = Recipe()) -> Path:
    """The folder of the trained model; trains it when the cache lacks it."""
    base = resolve_model(recipe.base)
    sources = {name: hashlib.sha256((data / "argkp-train" / name).read_bytes()).hexdigest() for name in FILES}
    made_of = json.dumps({"recipe": asdict(recipe), "base": base.revision, "sources": sources}, sort_keys=True)
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:12]
    folder = cache_dir() / "models" / f"argkp-cross-encoder-{digest}"
    with building(folder) as scratch:
        if scratch is not None:
            report = _train(base.path_or_id, read_labels(data / "argkp-train"), recipe, scratch)
            (scratch / "training.json").write_text(json.dumps(json.loads(made_of) | report, indent=1) + "\n", "utf-8")
    return folder


def _train(base: str, labels: list[Labelled], recipe: Recipe, to: Path) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.set_num_threads(1)  # the same steps everywhere
    fast_bfloat16 = product_rates().bfloat16_is_faster
    torch.manual_seed(recipe.seed)
    random = np.random.default_rng(recipe.seed)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate)
    of_label = [np.flatnonzero([x.matches == value for x in labels]) for value in (False, True)]
    counts = (recipe.others, recipe.matching)
    losses: list[float] = []
    began = time.monotonic()
    done = 0.0
    while done < 1:
        picks = [random.choice(of, n, replace=False) for of, n in zip(of_label, counts, strict=True)]
        batch = [labels[i] for i in np.concatenate(picks)]
        inputs = tokenizer(
            [x.key_point for x in batch],
            [x.argument for x in batch],
            padding=True,
            truncation=True,
            max_length=recipe.max_tokens,
            return_tensors="pt",
        )
        wanted = torch.tensor([float(x.matches) for x in batch])
        optimizer.param_groups[0]["lr"] = recipe.learning_rate * min(
            done / recipe.warmup, (1 - done) / (1 - recipe.warmup)
        )
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=fast_bfloat16):
            logits = model(**inputs).logits[:, 0]
        loss: Any = torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        done = min((time.monotonic() - began) / recipe.seconds, len(losses) / recipe.steps)
    model.save_pretrained(to)
    tokenizer.save_pretrained(to)
    tail = losses[-max(1, len(losses) // 5) :]
    dtype = "bfloat16" if fast_bfloat16 else "float32"
    return {"seconds": time.monotonic() - began, "dtype": dtype, "steps": len(losses), "loss": float(np.mean(tail))}


if __name__ == "__main__":
    print(trained_cross_encoder())
