"""An encoder of single texts: embeddings, pair scores from them, and exact dense retrieval.

The score of a pair, 0 to 1, stands for a coverage probability; it is not calibrated. By `similarity` it is the cosine
of two embeddings (Reimers and Gurevych, 2019), a late interaction of their tokens (Khattab and Zaharia, 2020), or the
cosine of the document's best sentence. Every text is encoded once per block, however many pairs it is in, or once per
corpus where `embeddings` are kept. A block is packed from its own texts only and in an order that depends on nothing
else, so its scores are the same bits whatever is scored beside it, in whatever order, on however many workers.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
from pydantic import Field

from lancer.closed import Closed
from lancer.engines.cache import cache_dir
from lancer.engines.cores import own_cores
from lancer.engines.embedded import resolve_model
from lancer.engines.embeddings import (
    EMBEDDINGS_VERSION,
    PART_DOCUMENTS,
    CorpusEmbeddings,
    Shelf,
    corpus_embeddings,
)
from lancer.engines.meter import Meter
from lancer.engines.packed_encoders import TYPES, PackedEncoder, PaddedEncoder, Placement, packed_encoder
from lancer.engines.packed_scoring import is_out_of_memory, one_thread_each
from lancer.engines.pair_packing import Pack
from lancer.engines.protocols import Block, EngineClock, Hit, Hits, ScoredBlock, Side
from lancer.engines.similarity import FloatArray, best_sentence, cosine, late_interaction
from lancer.engines.sources import DocumentSource
from lancer.errors import CallFailed, SetupError, UsageError
from lancer.storage import Storage
from lancer.text.sentences import VERSION as SENTENCES_VERSION
from lancer.text.sentences import sentence_spans

log = logging.getLogger(__name__)

ENCODING_VERSION: Final = 2  # change it with anything in the computation that changes the bits of an embedding

R = TypeVar("R")


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
    similarity: Literal["cosine", "max-sim", "best-sentence"] = "cosine"
    """Of a pair, see `lancer.engines.similarity`; retrieval is by cosine always."""
    embeddings: str | None = Field(None, min_length=1)
    """Those of the whole corpus are computed once and kept: `cache` = in this machine's cache folder, else a folder or
    an s3:// prefix. Retrieval needs them, cosines use them. null: candidates are encoded as they come."""
    # Pairs per CPU second with MiniLM on 100 passages x 10 sub-questions: 1024 939, 2048 964, 4096 935, 8192 976.
    batch_tokens: int = Field(default=2048, gt=0)
    """Tokens in a pack, were each text as long as its longest; a single longer text is a pack of its own."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = Field(default=None, gt=0)
    """On a CPU, so many packs at a time, of one thread each: no low bit depends on it. None = the cores that this
    process may use, shared out evenly among the replicas."""
    replicas: int = Field(default=1, gt=0)
    num_cpus: float = Field(default=0.5, ge=0)
    num_gpus: float = Field(default=0, ge=0)

    def result_fields(self) -> dict[str, object]:
        """What enters fingerprints, beside the resolved revision. `batch_tokens` is in it: low bits depend on it.

        Of `embeddings` only whether they are used: then add what identifies the corpus.
        """
        place = {"kind", "revision", "device", "threads", "replicas", "num_cpus", "num_gpus", "embeddings"}
        kept = None if self.embeddings is None else {"version": EMBEDDINGS_VERSION, "part": PART_DOCUMENTS}
        fields = self.model_dump(exclude=place) | {"embeddings": kept, "encoding": ENCODING_VERSION}
        return fields if self.similarity != "best-sentence" else fields | {"sentences": SENTENCES_VERSION}


class BiEncoder:
    """A `PairScorer`, an `Embedder`, and with `embeddings` a `SearchEngine` over `source`.

    Raises:
        SetupError: torch, the device or the model is missing.
        UsageError: `max_tokens` is more than the model has positions, or `embeddings` without a corpus.
    """

    def __init__(
        self, config: BiEncoderConfig, source: DocumentSource | None = None, storage: Storage | None = None
    ) -> None:
        self._meter = Meter()
        self.config = config
        self._encoded, self._cut = 0, 0  # tokens, and texts that were cut to max_tokens, so far
        self._lock = threading.Lock()
        self._tokenizer, self._encoder, self._size, device = _load(config)
        self._specials = self._tokenizer.all_special_ids
        # On a GPU one: a second pack would only take its memory.
        threads = 1 if device == "cuda" else config.threads or own_cores(config.replicas)
        self._threads = ThreadPoolExecutor(threads, "bi-encoder", initializer=one_thread_each)
        self._corpus: CorpusEmbeddings | None = None
        if config.embeddings is not None:
            if source is None or source.kind == "index":
                raise UsageError("key 'corpus' is missing: there are no documents to keep `embeddings` of")
            storage = storage or Storage()
            shelf = _shelf(config, source, storage)
            self._corpus = corpus_embeddings(source.open(storage), shelf, lambda texts: self.embed(texts, "document"))
            if self._cut:
                log.warning("%d documents are embedded by their first %d tokens only", self._cut, config.max_tokens)
        self._meter.ready()

    def score(self, blocks: Sequence[Block]) -> list[ScoredBlock]:
        """See `PairScorer.score`. CallFailed: out of memory."""
        return [self._score(block) for block in blocks]

    def embed(self, texts: Sequence[str], side: Side) -> FloatArray:
        """See `Embedder.embed`."""
        with self._lock, self._meter:
            return self._vectors([(text, side) for text in texts])

    def search(self, queries: Sequence[str], depth: int) -> list[list[Hit]]:
        """The documents of the highest cosine, ties by doc_id. A query is encoded alone: nothing beside it matters.

        UsageError: the engine has no `embeddings`.
        """
        if self._corpus is None:
            raise UsageError("a bi-encoder without `embeddings` cannot search")
        with self._lock, self._meter:
            hits: list[list[Hit]] = []
            for query in queries:
                before = self._encoded
                found = self._corpus.search(self._vectors([(query, "query")])[0], depth)
                hits.append(Hits(found, self._encoded - before))
        self._meter.add(calls=len(queries))
        return hits

    def clock(self) -> EngineClock:
        """Start-up until model and kept embeddings are there; busy = at work; a call is a block or a query."""
        return self._meter.clock()

    def close(self) -> None:
        """Ends the threads. May be called again."""
        self._threads.shutdown()

    def _score(self, block: Block) -> ScoredBlock:
        submitted = time.monotonic()
        with self._lock, self._meter:
            began = time.monotonic()
            encoded, cut = self._encoded, self._cut
            if self.config.similarity == "cosine":
                scores = self._cosines(block)
            elif self.config.similarity == "max-sim":
                scores = self._late_interaction(block)
            else:
                scores = self._best_sentences(block)
            ended = time.monotonic()
            tokens, cut_inputs = self._encoded - encoded, self._cut - cut
        self._meter.add(calls=1)
        return ScoredBlock(
            scores=scores, tokens=tokens, queue_s=began - submitted, run_s=ended - began, cut_inputs=cut_inputs
        )

    def _cosines(self, block: Block) -> FloatArray:
        vectors = self._vectors(
            [(text, "document") for text in block.documents] + [(text, "query") for text in block.sub_questions]
        )
        return cosine(vectors[: len(block.documents)], vectors[len(block.documents) :])

    def _late_interaction(self, block: Block) -> FloatArray:
        documents = [self._as_document(text) for text in block.documents]
        tokens = self._embed_tokens(documents + [self._as_query(text) for text in block.sub_questions])
        return late_interaction(tokens[: len(documents)], tokens[len(documents) :])

    def _best_sentences(self, block: Block) -> FloatArray:
        split = [sentences_of(text) for text in block.documents]
        flat = [self._as_document(sentence) for parts in split for sentence in parts]
        vectors = self._embed(flat + [self._as_query(text) for text in block.sub_questions])
        return best_sentence(vectors[: len(flat)], [len(parts) for parts in split], vectors[len(flat) :])

    def _as_document(self, text: str) -> str:
        return self.config.document_prefix + text

    def _as_query(self, text: str) -> str:
        return self.config.query_prefix + text

    def _vectors(self, texts: Sequence[tuple[str, Side]]) -> FloatArray:
        """Unit vectors, shape (texts, dimensions): the corpus's where they are kept."""
        shown = [self._as_document(text) if side == "document" else self._as_query(text) for text, side in texts]
        found: dict[str, FloatArray] = {}
        if self._corpus is not None:
            alike = self.config.query_prefix == self.config.document_prefix
            for (text, side), whole in zip(texts, shown, strict=True):
                if (side == "document" or alike) and (vector := self._corpus.of_text(text)) is not None:
                    found[whole] = vector
        new = [whole for whole in dict.fromkeys(shown) if whole not in found]
        found.update(zip(new, self._embed(new), strict=True))
        return np.array([found[whole] for whole in shown], np.float32).reshape(len(shown), self._size)

    def _embed(self, texts: Sequence[str]) -> FloatArray:
        """Unit vectors, shape (texts, dimensions), NaN of a text without tokens; equal texts are encoded once."""
        distinct = list(dict.fromkeys(texts))
        vectors = np.full((len(distinct), self._size), np.nan, np.float32)
        for rows, pooled in self._encode(distinct, self._pooled):
            vectors[rows] = pooled
        row_of = {text: row for row, text in enumerate(distinct)}
        return vectors[[row_of[text] for text in texts]]

    def _embed_tokens(self, texts: Sequence[str]) -> list[FloatArray]:
        """Unit vectors of the tokens of each text, shape (tokens, dimensions), without the special ones."""
        import torch

        def own(pack: Pack) -> list[FloatArray]:
            units = torch.nn.functional.normalize(self._encoder.hidden(pack), dim=-1).cpu().numpy()
            kept = ~np.isin(pack.ids, self._specials)
            ends = np.cumsum(pack.lengths)[:-1]
            return [unit[places] for unit, places in zip(np.split(units, ends), np.split(kept, ends), strict=True)]

        distinct = list(dict.fromkeys(texts))
        vectors = dict.fromkeys(distinct, np.empty((0, self._size), np.float32))
        for rows, tokens in self._encode(distinct, own):
            vectors.update(zip((distinct[row] for row in rows), tokens, strict=True))
        return [vectors[text] for text in texts]

    def _encode(self, texts: list[str], compute: Callable[[Pack], R]) -> list[tuple[list[int], R]]:
        """Of each pack the rows in `texts`, and what `compute` makes of it, by one thread from end to end."""
        token_ids = self._tokenize(texts)

        def of_pack(rows: list[int]) -> tuple[list[int], R]:
            import torch

            try:
                with torch.inference_mode():
                    return rows, compute(Pack.of_texts([token_ids[row] for row in rows]))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                raise CallFailed(
                    f"out of memory with packs of {self.config.batch_tokens} tokens; lower batch_tokens: {error}"
                ) from error

        done = list(self._threads.map(of_pack, _packs(token_ids, self.config.batch_tokens)))
        tokens = sum(map(len, token_ids))
        self._encoded += tokens
        self._meter.add(tokens=tokens)
        return done

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        encoded = self._tokenizer(
            texts, truncation=True, max_length=self.config.max_tokens, return_overflowing_tokens=True
        )
        first: dict[int, list[int]] = {}  # what overflows comes as further rows of the same text
        for text, ids in zip(encoded["overflow_to_sample_mapping"], encoded["input_ids"], strict=True):
            first.setdefault(text, ids)
        self._cut += sum(rows > 1 for rows in Counter(encoded["overflow_to_sample_mapping"]).values())
        return [first[text] for text in range(len(texts))]

    def _pooled(self, pack: Pack) -> FloatArray:
        import torch

        if self.config.pooling == "cls":
            pooled = self._encoder.hidden(pack, first_only=True)
        else:
            hidden = self._encoder.hidden(pack)
            lengths = torch.from_numpy(pack.lengths).to(hidden.device)
            pooled = torch.segment_reduce(hidden, "mean", lengths=lengths, axis=0)
        vectors: FloatArray = torch.nn.functional.normalize(pooled, dim=-1).cpu().numpy()
        return vectors


def _shelf(config: BiEncoderConfig, source: DocumentSource, storage: Storage) -> Shelf:
    """Where the embeddings of this corpus by this model lie."""
    own = config.result_fields()
    made_of = {name: own[name] for name in own if name not in ("query_prefix", "similarity", "sentences")}
    identity = {"corpus": source.digest, "revision": resolve_model(config.model, config.revision).revision, **made_of}
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
    folder = str(cache_dir() / "embeddings") if config.embeddings == "cache" else str(config.embeddings)
    return Shelf(folder, key, storage)


def sentences_of(document: str) -> list[str]:
    """What stands for a document in `best-sentence`; at least one text."""
    return [document[start:end] for start, end in sentence_spans(document)] or [document]


def _packs(token_ids: Sequence[Sequence[int]], batch_tokens: int) -> Iterator[list[int]]:
    """Rows of each pack: by length, then by the ids themselves, so that the order of the input does not matter.

    Texts without tokens (some tokenizers add none of their own) are in no pack.
    """
    batch: list[int] = []
    rows = [row for row, ids in enumerate(token_ids) if len(ids)]
    for row in sorted(rows, key=lambda row: (len(token_ids[row]), token_ids[row])):
        if batch and (len(batch) + 1) * len(token_ids[row]) > batch_tokens:
            yield batch
            batch = []
        batch.append(row)
    if batch:
        yield batch


def _load(config: BiEncoderConfig) -> tuple[Any, PackedEncoder, int, str]:
    """Tokenizer, model, size of its hidden states and device."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # Read when torch is imported. Threads that spin while they wait starve the other engines of a small machine:
    # with all cores busy, half as many pairs again per CPU second.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        import torch
        from transformers import AutoConfig, AutoModel, AutoTokenizer
    except ImportError as error:
        raise SetupError(f"a bi-encoder needs {error.name}: install lancer with the extra `cpu` or `gpu`") from None
    if config.device == "cuda" and not torch.cuda.is_available():
        raise SetupError("device is cuda, but torch sees no GPU here")
    device = "cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu"
    resolved = resolve_model(config.model, config.revision)
    options: dict[str, Any] = {
        "revision": config.revision or "main",
        "trust_remote_code": False,
        "local_files_only": Path(resolved.path_or_id).is_dir(),
    }
    dtype = getattr(torch, config.dtype)
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolved.path_or_id, **options)
        own = AutoConfig.from_pretrained(resolved.path_or_id, **options)
        # What transformers computes itself is loaded in the type, as it keeps some parts in float32 then.
        loaded = torch.float32 if own.model_type in TYPES else dtype
        model: Any = AutoModel.from_pretrained(
            resolved.path_or_id, dtype=loaded, use_safetensors=True, **options
        ).eval()
    except (OSError, ValueError) as error:
        raise SetupError(f"model {config.model!r} cannot be loaded: {error}") from error
    placement = Placement(device, dtype)
    encoder = packed_encoder(model, placement) or PaddedEncoder(model, placement, tokenizer.pad_token_id or 0)
    if config.max_tokens > encoder.max_tokens:
        raise UsageError(
            f"max_tokens {config.max_tokens} is more than the {encoder.max_tokens} positions of model {config.model!r}"
        )
    return tokenizer, encoder, model.config.hidden_size, device
