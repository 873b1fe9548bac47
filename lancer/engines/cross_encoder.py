"""A pair scorer: a cross-encoder reads sub-question and document together (Nogueira and Cho, 2019; DES's matrix).

About 1,000 pairs per query come in one call. `lancer.engines.packed_scoring` computes them; here are its config, the
model's place and what a call has cost. Scores do not depend on other calls, on the number of workers or on kills.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from lancer.closed import Closed
from lancer.engines.cores import own_cores
from lancer.engines.embedded import resolve_model
from lancer.engines.meter import Meter
from lancer.engines.packed_classifiers import packed_classifier
from lancer.engines.packed_encoders import TYPES, Placement
from lancer.engines.packed_scoring import Cells, PackedScorer, Settings, by_block
from lancer.engines.pair_packing import Windows
from lancer.engines.product_rate import product_rates
from lancer.engines.protocols import Block, EngineClock, ScoredBlock
from lancer.errors import EngineError, SetupError, UsageError

log = logging.getLogger(__name__)


class CrossEncoderConfig(Closed):
    """A sequence classifier and how its logits become probabilities. `result_fields` says what can change a score."""

    kind: Literal["cross-encoder"] = "cross-encoder"
    model: str
    revision: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    """float32 is the reference; bfloat16 is faster where the processor computes it fast, else the log says so."""
    activation: Literal["sigmoid", "softmax"] = "sigmoid"
    label: int | None = Field(default=None, ge=0)
    """Index of the label that means "answers", in a model of several labels."""
    max_tokens: int = Field(default=512, gt=8)
    """Of a pair; longer ones are cut by `truncation`."""
    truncation: Literal["longest_first", "only_second"] = "longest_first"
    """only_second: the sub-question is never cut; one that leaves no room for the document has no score."""
    long: Literal["first", "windows"] = "first"
    """A long document: its first tokens, or the maximum over windows."""
    window: int = Field(default=400, gt=0)
    """Tokens of the document in a window."""
    stride: int = Field(default=200, gt=0)
    batch_tokens: int = Field(default=2048, gt=0)
    """Tokens in a pack; a single longer pair is a pack of its own. About 65,536 fill a GPU."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = Field(default=None, gt=0)
    """On a CPU; None = the cores that this process may use, shared out evenly among the replicas."""
    replicas: int = Field(default=1, gt=0)
    num_cpus: float = Field(default=0.5, ge=0)
    num_gpus: float = Field(default=0, ge=0)
    """Of one replica; several may share a GPU."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.activation == "softmax" and self.label is None:
            raise ValueError("softmax needs `label`: the index of the label that means the document answers")
        if self.long == "windows" and self.stride > self.window:
            raise ValueError(f"stride {self.stride} is more than window {self.window}: tokens between would be lost")
        if self.long == "windows" and self.window >= self.max_tokens:
            raise ValueError(f"window {self.window} leaves no room for a sub-question in max_tokens {self.max_tokens}")
        return self

    def result_fields(self) -> dict[str, object]:
        """What enters fingerprints, beside the resolved revision. `batch_tokens` is in it: low bits depend on it."""
        return self.model_dump(exclude={"kind", "revision", "device", "threads", "replicas", "num_cpus", "num_gpus"})


class CrossEncoder:
    """A `PairScorer`.

    Raises:
        SetupError: torch, the device or the model is missing.
        UsageError: the model is no sequence classifier that is known here, or the config does not go with it.
    """

    def __init__(self, config: CrossEncoderConfig) -> None:
        self._meter = Meter()
        self.config = config
        self._lock = threading.Lock()
        self._scorer: PackedScorer | None = _load(config)
        self._meter.ready()

    def score(self, blocks: Sequence[Block]) -> list[ScoredBlock]:
        """See `PairScorer.score`. A pair that several blocks have is paid by the first of them.

        Raises:
            CallFailed: the model failed, or one pair alone does not fit the memory. EngineError: the engine is closed.
        """
        submitted = time.monotonic()
        scorer = self._scorer
        if scorer is None:
            raise EngineError(f"cross-encoder {self.config.model!r} is closed")
        with self._meter:
            cells = Cells.of(blocks)
            inputs = scorer.inputs(cells)
            with self._lock:
                began = time.monotonic()
                scores = scorer.scores(inputs, len(cells.pairs))
                run_s = time.monotonic() - began
        self._meter.add(calls=len(blocks), tokens=int(inputs.total.sum()))
        tokens = np.bincount(cells.payer[inputs.pair_of], weights=inputs.total, minlength=len(blocks))
        shares = tokens / max(1.0, tokens.sum())
        cut = np.bincount(cells.payer[np.unique(inputs.pair_of[inputs.cut])], minlength=len(blocks))
        return [
            ScoredBlock(
                scores=own,
                tokens=int(spent),
                queue_s=began - submitted,
                run_s=float(run_s * share),
                cut_inputs=int(pairs),
            )
            for own, spent, share, pairs in zip(
                by_block(scores[cells.pair_of], blocks), tokens, shares, cut, strict=True
            )
        ]

    def clock(self) -> EngineClock:
        """Start-up until the model is loaded; busy = tokenising or computing; a call is a block.

        Tokens include the special ones.
        """
        return self._meter.clock()

    def close(self) -> None:
        """Free the model. May be called again."""
        with self._lock:
            scorer, self._scorer = self._scorer, None
            if scorer is not None:
                scorer.close()


def _load(config: CrossEncoderConfig) -> PackedScorer:
    try:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer
    except ImportError as error:
        raise SetupError(f"a cross-encoder needs {error.name}: install lancer with the extra `cpu` or `gpu`") from None
    if config.device == "cuda" and not torch.cuda.is_available():
        raise SetupError("device is cuda, but torch sees no GPU here")
    device = "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"
    resolved = resolve_model(config.model, config.revision)
    options: dict[str, Any] = {
        "revision": config.revision or "main",
        "trust_remote_code": False,
        "local_files_only": os.path.isdir(resolved.path_or_id),
    }
    dtype = getattr(torch, config.dtype)
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolved.path_or_id, **options)
        model, loading = AutoModelForSequenceClassification.from_pretrained(
            resolved.path_or_id, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **options
        )
    except (OSError, ValueError) as error:
        raise SetupError(f"model {config.model!r} cannot be loaded: {error}") from error
    if missing := sorted(loading["missing_keys"]):  # transformers fills them with random numbers
        raise UsageError(f"model {config.model!r} is no trained sequence classifier: it lacks {', '.join(missing)}")
    _check_labels(config, model.config)
    placement = Placement(device, dtype)
    classifier = packed_classifier(model.eval(), placement)
    if classifier is None:
        raise UsageError(f"model {config.model!r} is of type {model.config.model_type!r}, allowed: {', '.join(TYPES)}")
    if config.max_tokens > classifier.max_tokens:
        raise UsageError(
            f"max_tokens {config.max_tokens} is more than the {classifier.max_tokens} positions of {config.model!r}"
        )
    if dtype == torch.bfloat16 and device == "cpu":
        rates = product_rates()
        if not rates.bfloat16_is_faster:
            log.warning(
                "bfloat16 is slower than float32 on this processor: %.0f GFLOP/s against %.0f",
                rates.bfloat16,
                rates.float32,
            )
    # On a GPU the second thread prepares a pack while the first waits for its own.
    settings = Settings(
        activation=config.activation,
        label=config.label or 0,
        max_tokens=config.max_tokens,
        truncation=config.truncation,
        windows=Windows(config.window, config.stride) if config.long == "windows" else None,
        batch_tokens=config.batch_tokens,
    )
    try:
        return PackedScorer(
            tokenizer, classifier, settings, 2 if device == "cuda" else config.threads or own_cores(config.replicas)
        )
    except ValueError as error:
        raise SetupError(f"model {config.model!r} cannot be used: {error}") from error


def _check_labels(config: CrossEncoderConfig, model: Any) -> None:
    """UsageError unless activation and label go with the model's labels."""
    if model.num_labels == 1 and config.activation == "softmax":
        raise UsageError(f"model {config.model!r} has one label: softmax would make every score 1, use sigmoid")
    if model.num_labels > 1 and config.label is None:
        raise UsageError(f"model {config.model!r} has labels {model.id2label}: `label` must name the index of one")
    if (config.label or 0) >= model.num_labels:
        raise UsageError(f"label {config.label} is not one of model {config.model!r}: {model.id2label}")
