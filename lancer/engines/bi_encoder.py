"""A pair scorer: cosine of the embeddings of document and sub-question (Reimers and Gurevych, 2019).

The cosine, clipped to 0..1, stands for a coverage probability; it is not calibrated. Every text is embedded once per
block, however many pairs it is in. A block is packed from its own texts only and in an order that depends on nothing
else, so its scores are the same bits whatever is scored beside it, in whatever order, on however many workers.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from lancer.closed import Closed
from lancer.engines.embedded import resolve_model
from lancer.engines.meter import Meter
from lancer.engines.protocols import Block, EngineClock, ScoredBlock
from lancer.errors import EngineError, SetupError, UsageError


class BiEncoderConfig(Closed):
    """A transformers encoder and how its embeddings are made. `result_fields` says what can change a score."""

    kind: Literal["bi-encoder"] = "bi-encoder"
    model: str
    revision: str | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    max_tokens: int = Field(default=256, gt=2)
    """Longer texts are cut, and counted."""
    pooling: Literal["mean", "cls"] = "mean"
    query_prefix: str = ""
    document_prefix: str = ""
    # Pairs per CPU second with MiniLM on 100 passages x 10 sub-questions: 1024 465, 2048 416, 4096 381, 16384 211.
    batch_tokens: int = Field(default=2048, gt=0)
    """Padded tokens in a batch; a single longer text is a batch of its own."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = Field(default=None, gt=0)
    """On a CPU; None = every core this process may use."""
    replicas: int = Field(default=1, gt=0)
    num_cpus: float = Field(default=0.5, ge=0)
    num_gpus: float = Field(default=0, ge=0)

    def result_fields(self) -> dict[str, object]:
        """What enters fingerprints, beside the resolved revision. `batch_tokens` is in it: low bits depend on it."""
        return self.model_dump(exclude={"kind", "revision", "device", "threads", "replicas", "num_cpus", "num_gpus"})


class BiEncoder:
    """A `PairScorer`.

    Raises:
        SetupError: torch, the device or the model is missing.
        UsageError: `max_tokens` is more than the model has positions.
    """

    def __init__(self, config: BiEncoderConfig) -> None:
        self._meter = Meter()
        self.config = config
        self.truncated = 0  # texts cut to max_tokens so far
        self._lock = threading.Lock()
        self._tokenizer, self._model, self._device = _load(config)
        self._meter.ready()

    def score(self, blocks: Sequence[Block]) -> list[ScoredBlock]:
        """See `PairScorer.score`. EngineError: out of memory."""
        return [self._score(block) for block in blocks]

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Unit vectors, shape (texts, dimensions), without prefixes; equal texts are embedded once."""
        with self._lock, self._meter:
            return self._embed(texts)[0]

    def clock(self) -> EngineClock:
        """Start-up until the model is loaded; busy = embedding; a call is a block."""
        return self._meter.clock()

    def _score(self, block: Block) -> ScoredBlock:
        documents = [self.config.document_prefix + text for text in block.documents]
        sub_questions = [self.config.query_prefix + text for text in block.sub_questions]
        submitted = time.monotonic()
        with self._lock, self._meter:
            began = time.monotonic()
            vectors, tokens = self._embed(documents + sub_questions)
            ended = time.monotonic()
        self._meter.add(calls=1)
        # In doubles the sum does not depend, after rounding, on where in the matrix a pair is.
        wide = vectors.astype(np.float64)
        cosines = wide[: len(documents)] @ wide[len(documents) :].T
        scores = np.clip(cosines, 0.0, 1.0).astype(np.float32)
        return ScoredBlock(scores=scores, tokens=tokens, queue_s=began - submitted, run_s=ended - began)

    def _embed(self, texts: Sequence[str]) -> tuple[npt.NDArray[np.float32], int]:
        distinct = list(dict.fromkeys(texts))
        token_ids = self._tokenize(distinct)
        vectors = np.zeros((len(distinct), self._model.config.hidden_size), np.float32)
        for rows in _pack(token_ids, self.config.batch_tokens):
            vectors[rows] = self._forward([token_ids[row] for row in rows])
        tokens = sum(map(len, token_ids))
        self._meter.add(tokens=tokens)
        row_of = {text: row for row, text in enumerate(distinct)}
        return vectors[[row_of[text] for text in texts]], tokens

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        encoded = self._tokenizer(
            texts, truncation=True, max_length=self.config.max_tokens, return_overflowing_tokens=True
        )
        first: dict[int, list[int]] = {}  # what overflows comes as further rows of the same text
        for text, ids in zip(encoded["overflow_to_sample_mapping"], encoded["input_ids"], strict=True):
            first.setdefault(text, ids)
        self.truncated += sum(rows > 1 for rows in Counter(encoded["overflow_to_sample_mapping"]).values())
        return [first[text] for text in range(len(texts))]

    def _forward(self, token_ids: list[list[int]]) -> npt.NDArray[np.float32]:
        import torch

        longest = max(map(len, token_ids))
        ids = torch.full((len(token_ids), longest), self._tokenizer.pad_token_id or 0)
        mask = torch.zeros((len(token_ids), longest), dtype=torch.long)
        for row, sequence in enumerate(token_ids):
            ids[row, : len(sequence)] = torch.tensor(sequence)
            mask[row, : len(sequence)] = 1
        ids, mask = ids.to(self._device), mask.to(self._device)
        try:
            with torch.inference_mode():
                hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        except torch.OutOfMemoryError as error:
            raise EngineError(
                f"out of memory with batches of {self.config.batch_tokens} tokens; lower batch_tokens: {error}"
            ) from error
        if self.config.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            pooled = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        vectors: npt.NDArray[np.float32] = torch.nn.functional.normalize(pooled, dim=-1).cpu().numpy()
        return vectors


def _pack(token_ids: Sequence[Sequence[int]], batch_tokens: int) -> Iterator[list[int]]:
    """Rows of each batch: by length, then by the ids themselves, so that the order of the input does not matter."""
    batch: list[int] = []
    for row in sorted(range(len(token_ids)), key=lambda row: (len(token_ids[row]), token_ids[row])):
        if batch and (len(batch) + 1) * len(token_ids[row]) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _load(config: BiEncoderConfig) -> tuple[Any, Any, str]:
    """Tokenizer, model and device."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # Read when torch is imported. Threads that spin while they wait starve the other engines of a small machine:
    # with all cores busy, 358 pairs per CPU second against 235.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import torch
        from transformers import AutoModel, AutoTokenizer
    except ImportError as error:
        raise SetupError(f"a bi-encoder needs {error.name}: install lancer with the extra `cpu` or `gpu`") from None
    if config.device == "cuda" and not torch.cuda.is_available():
        raise SetupError("device is cuda, but torch sees no GPU here")
    device = "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"
    if device == "cpu":
        # Ray sets OMP_NUM_THREADS=1 for actors of less than two CPUs.
        torch.set_num_threads(config.threads or len(os.sched_getaffinity(0)))
    resolved = resolve_model(config.model, config.revision)
    options: dict[str, Any] = {
        "revision": config.revision or "main",
        "trust_remote_code": False,
        "local_files_only": Path(resolved.path_or_id).is_dir(),
    }
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolved.path_or_id, **options)
        model: Any = AutoModel.from_pretrained(
            resolved.path_or_id, dtype=getattr(torch, config.dtype), use_safetensors=True, **options
        )
    except (OSError, ValueError) as error:
        raise SetupError(f"model {config.model!r} cannot be loaded: {error}") from error
    positions = getattr(model.config, "max_position_embeddings", config.max_tokens)
    if config.max_tokens > positions:
        raise UsageError(
            f"max_tokens {config.max_tokens} is more than the {positions} positions of model {config.model!r}"
        )
    return tokenizer, model.to(device).eval(), device
