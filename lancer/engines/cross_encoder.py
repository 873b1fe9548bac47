"""A pair scorer: a cross-encoder reads sub-question and document together (Nogueira and Cho, 2019; DES's matrix).

About 1,000 pairs per query come in one call. Each text is tokenised once, each distinct pair scored once; the pairs of
all blocks of a call are sorted by length and packed under a token budget, without padding. What is packed together
depends on the call alone, so scores do not depend on other calls, on the number of workers or on kills.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from lancer.closed import Closed
from lancer.engines.embedded import resolve_model
from lancer.engines.meter import Meter
from lancer.engines.packed_attention import varlen_available
from lancer.engines.packed_classifiers import TYPES, PackedClassifier, Placement, packed_classifier
from lancer.engines.pair_packing import Inputs, IntArray, Pack, PairTemplate, Windows, build_inputs, split
from lancer.engines.protocols import Block, EngineClock, ScoredBlock
from lancer.errors import EngineError, SetupError, UsageError

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


class CrossEncoderConfig(Closed):
    """A sequence classifier and how its logits become probabilities. `result_fields` says what can change a score."""

    kind: Literal["cross-encoder"] = "cross-encoder"
    model: str
    revision: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    """float32 is the reference; bfloat16 is faster where the processor has instructions for it."""
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
        self._tokenizer_lock, self._lock = threading.Lock(), threading.Lock()
        self._most = config.batch_tokens  # less once a pack has not fitted the memory, until the call ends
        self._classifier: PackedClassifier | None
        self._tokenizer, self._template, self._classifier, threads = _load(config)
        self._threads = ThreadPoolExecutor(threads, "cross-encoder", initializer=_one_thread_each)
        self._meter.ready()

    def score(self, blocks: Sequence[Block]) -> list[ScoredBlock]:
        """See `PairScorer.score`. A pair that several blocks have is paid by the first of them.

        Raises:
            EngineError: the model failed, one pair alone does not fit the memory, or the engine is closed.
        """
        submitted = time.monotonic()
        with self._meter:
            cells = _Cells.of(blocks)
            inputs = self._inputs(cells)
            with self._lock:
                began = time.monotonic()
                scores = self._scores(inputs, len(cells.pairs))
                run_s = time.monotonic() - began
        self._meter.add(calls=len(blocks), tokens=int(inputs.total.sum()))
        tokens = np.bincount(cells.payer[inputs.pair_of], weights=inputs.total, minlength=len(blocks))
        shares = tokens / max(1.0, tokens.sum())
        shapes = [(len(block.documents), len(block.sub_questions)) for block in blocks]
        ends = np.cumsum([n * m for n, m in shapes])
        return [
            ScoredBlock(
                scores=scores[cells.pair_of[end - n * m : end]].reshape(n, m),
                tokens=int(tokens[i]),
                queue_s=began - submitted,
                run_s=float(run_s * shares[i]),
            )
            for i, ((n, m), end) in enumerate(zip(shapes, ends, strict=True))
        ]

    def clock(self) -> EngineClock:
        """Start-up until the model is loaded; busy = tokenising or computing; a call is a block.

        Tokens include the special ones.
        """
        return self._meter.clock()

    def close(self) -> None:
        """Free the model. May be called again."""
        with self._lock:
            self._classifier = None
            self._threads.shutdown()

    def _inputs(self, cells: _Cells) -> Inputs:
        with self._tokenizer_lock:  # fast tokenizers are not thread-safe
            sub_questions, documents = (
                self._tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
                if texts
                else []
                for texts in (cells.sub_questions, cells.documents)
            )
        config = self.config
        return build_inputs(
            self._template,
            sub_questions,
            documents,
            cells.pairs,
            max_tokens=config.max_tokens,
            truncation=config.truncation,
            windows=Windows(config.window, config.stride) if config.long == "windows" else None,
        )

    def _scores(self, inputs: Inputs, pairs: int) -> npt.NDArray[np.float32]:
        """Of each pair: the maximum over its inputs; NaN if one of them is NaN or cannot be built."""
        of_input = np.full(len(inputs.total), np.nan, np.float32)
        # The longest first: if the memory is too small, that shows at once. Stable, so equal lengths keep their order.
        order = np.argsort(-inputs.total, kind="stable")
        order = order[inputs.total[order] > 0]
        of_input[order] = self._probabilities(inputs, order)
        scores = np.full(pairs, -np.inf, np.float32)
        with np.errstate(invalid="ignore"):
            np.maximum.at(scores, inputs.pair_of, of_input)
        return scores

    def _probabilities(self, inputs: Inputs, order: IntArray) -> npt.NDArray[np.float32]:
        """Of the inputs `order`, which fall in length."""
        if self._classifier is None:
            raise EngineError(f"cross-encoder {self.config.model!r} is closed")
        self._most = self.config.batch_tokens
        packs = [order[part] for part in split(inputs.total[order], self._most)]
        parts = self._threads.map(functools.partial(self._of_pack, inputs), packs)
        return np.concatenate([np.empty(0, np.float32), *parts])

    def _of_pack(self, inputs: Inputs, rows: IntArray) -> npt.NDArray[np.float32]:
        """Of the inputs `rows`; in halves once a pack of this size has not fitted the memory."""
        import torch

        tokens = int(inputs.total[rows].sum())
        if tokens <= self._most or len(rows) == 1:
            try:
                with torch.inference_mode():
                    probabilities: npt.NDArray[np.float32] = self._activate(inputs.pack(rows)).cpu().numpy()
                return probabilities
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error):
                    raise EngineError(f"cross-encoder {self.config.model!r} failed: {error}") from error
                if len(rows) == 1:
                    raise EngineError(
                        f"no memory for one pair of {tokens} tokens; lower max_tokens: {error}"
                    ) from error
            self._most = tokens // 2
            log.warning("out of memory with a pack of %d tokens, going on with half; lower batch_tokens", tokens)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        halves = np.array_split(rows, 2)
        return np.concatenate([self._of_pack(inputs, half) for half in halves])

    def _activate(self, pack: Pack) -> torch.Tensor:
        assert self._classifier is not None
        logits = self._classifier.logits(pack)
        probabilities = logits.softmax(-1) if self.config.activation == "softmax" else logits.sigmoid()
        return probabilities[:, self.config.label or 0]


@dataclass(frozen=True)
class _Cells:
    """The distinct texts and pairs of a call. `pair_of`: of each cell, block by block, row by row.

    `pairs` has shape (pairs, 2), indices of sub-question and document; `payer` is the first block that has the pair.
    """

    sub_questions: list[str]
    documents: list[str]
    pairs: IntArray
    pair_of: IntArray
    payer: IntArray

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> _Cells:
        sub_questions = {text: i for i, text in enumerate(dict.fromkeys(q for b in blocks for q in b.sub_questions))}
        documents = {text: i for i, text in enumerate(dict.fromkeys(d for b in blocks for d in b.documents))}
        width = max(1, len(sub_questions))
        keys = [
            np.array([[documents[d] * width + sub_questions[q] for q in b.sub_questions] for d in b.documents])
            for b in blocks
        ]
        flat = np.concatenate([np.empty(0, np.int64), *(k.ravel().astype(np.int64) for k in keys)])
        block_of = np.repeat(np.arange(len(blocks)), [k.size for k in keys])
        distinct, first, pair_of = np.unique(flat, return_index=True, return_inverse=True)
        pairs = np.stack([distinct % width, distinct // width], axis=1)
        return cls(list(sub_questions), list(documents), pairs, pair_of, block_of[first])


def _is_out_of_memory(error: Exception) -> bool:
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _load(config: CrossEncoderConfig) -> tuple[Any, PairTemplate, PackedClassifier, int]:
    """Tokenizer, template, classifier and the number of threads that compute packs."""
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
        template = PairTemplate.of(tokenizer)
    except (OSError, ValueError) as error:
        raise SetupError(f"model {config.model!r} cannot be loaded: {error}") from error
    if missing := sorted(loading["missing_keys"]):  # transformers fills them with random numbers
        raise UsageError(f"model {config.model!r} is no trained sequence classifier: it lacks {', '.join(missing)}")
    _check_labels(config, model.config)
    placement = Placement(device, dtype, varlen=varlen_available(device, dtype))
    classifier = packed_classifier(model.eval(), placement)
    if classifier is None:
        raise UsageError(f"model {config.model!r} is of type {model.config.model_type!r}, allowed: {', '.join(TYPES)}")
    if config.max_tokens > classifier.max_tokens:
        raise UsageError(
            f"max_tokens {config.max_tokens} is more than the {classifier.max_tokens} positions of {config.model!r}"
        )
    has = torch.cpu.get_capabilities()
    if dtype == torch.bfloat16 and device == "cpu" and not (has.get("avx512_bf16") or has.get("amx_bf16")):
        log.warning("this processor has no instructions for bfloat16: float32 is faster here")
    # On a GPU the second thread prepares a pack while the first waits for its own.
    cores = max(1, len(os.sched_getaffinity(0)) // config.replicas)
    return tokenizer, template, classifier, 2 if device == "cuda" else config.threads or cores


def _one_thread_each() -> None:
    """A pack is computed by one thread: no waiting for others, and the same bits on any number of cores."""
    import torch

    torch.set_num_threads(1)


def _check_labels(config: CrossEncoderConfig, model: Any) -> None:
    """UsageError unless activation and label go with the model's labels."""
    if model.num_labels == 1 and config.activation == "softmax":
        raise UsageError(f"model {config.model!r} has one label: softmax would make every score 1, use sigmoid")
    if model.num_labels > 1 and config.label is None:
        raise UsageError(f"model {config.model!r} has labels {model.id2label}: `label` must name the index of one")
    if (config.label or 0) >= model.num_labels:
        raise UsageError(f"label {config.label} is not one of model {config.model!r}: {model.id2label}")
