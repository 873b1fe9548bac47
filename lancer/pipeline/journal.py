"""What engines answered, kept apart from what stages made of it: an answer is paid for once.

Between a stage and its engine stands a journal. A call whose key is in it is answered from it; every other goes to the
engine, and its answer is written down within `FLUSH_S`. So a killed shard goes on where it was, a fixed parser reads
the old answers again, added queries pay for themselves only, and runs that share a `store` share their calls. A key
covers all that an answer depends on: the request itself here, the engine and its model by the folder.

    <store>/calls/<engine identity>/<shard prefix>-<writer>-<number>-<digest>.parquet

Failed calls are not written down: they are made again. So are those of a damaged file.
"""

from __future__ import annotations

import hashlib
import io
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.protocols import (
    Block,
    Documents,
    Generation,
    Message,
    PairScorer,
    Sampling,
    ScoredBlock,
    SearchEngine,
    TextEngine,
)
from lancer.engines.replay import request_digest
from lancer.errors import InputError, LancerError
from lancer.stages.base import Engines
from lancer.storage import Storage, join

log = logging.getLogger(__name__)

FLUSH_S: Final = 20.0  # a kill loses what was answered since
CHUNK: Final = 512  # prompts of one call of the engine
CHUNKS_IN_FLIGHT: Final = 3  # so that the engine never waits for the next one

CALL_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("text", pa.string()),  # of a text engine
        pa.field("finish", pa.string()),
        pa.field("logprobs", pa.list_(pa.float64())),
        pa.field("scores", pa.list_(pa.float32())),  # of a scorer, row-major
        pa.field("prompt_tokens", pa.int64(), nullable=False),
        pa.field("cached_tokens", pa.int64(), nullable=False),
        pa.field("output_tokens", pa.int64(), nullable=False),
        pa.field("queue_s", pa.float64(), nullable=False),
        pa.field("run_s", pa.float64(), nullable=False),
    ]
)


def call_prefix(name: str) -> str:
    """The shard prefix in the name of a journal's file."""
    return name.rsplit("/", 1)[-1].split("-", 1)[0]


@dataclass(frozen=True)
class Answer:
    """A row of `CALL_SCHEMA`. `reused`: paid already; else made for this shard just now, by a call that then failed."""

    row: dict[str, Any]
    reused: bool


class Journal:
    """The answers of one engine for one shard: `files` are what is there, new ones go below `folder`."""

    def __init__(self, storage: Storage, folder: str, prefix: str, files: Iterable[str] = ()) -> None:
        self._storage, self._folder, self._prefix = storage, folder, prefix
        self._files = tuple(files)
        self._known: dict[str, Answer] | None = None
        self._new: list[dict[str, Any]] = []
        self._own: list[str] = []
        self._lock = threading.Lock()
        self._writer = uuid.uuid4().hex[:12]
        self._flushed = time.monotonic()

    def get(self, key: str) -> Answer | None:
        """The answer to a call, or None. The files are read at the first call."""
        with self._lock:
            return self._answers().get(key)

    def add(self, rows: Sequence[dict[str, Any]]) -> None:
        """Takes answers; writes them when the last time is `FLUSH_S` ago."""
        with self._lock:
            self._new.extend(rows)
            self._answers().update((row["key"], Answer(row, reused=False)) for row in rows)
            if time.monotonic() - self._flushed >= FLUSH_S:
                self._write()

    def close(self) -> None:
        """Writes what is not yet written, as one file with what this writer wrote before."""
        with self._lock:
            if self._own and (self._new or len(self._own) > 1):
                self._new = [row for uri in self._own for row in self._read(uri)] + self._new
                before, self._own = self._own, []
                self._write(number=len(before))
                for uri in before:
                    self._storage.delete(uri)
            self._write()

    def _answers(self) -> dict[str, Answer]:
        if self._known is None:
            self._known = {row["key"]: Answer(row, reused=True) for uri in self._files for row in self._read(uri)}
        return self._known

    def _read(self, uri: str) -> list[dict[str, Any]]:
        """The rows of a file; none when it is gone (its writer has put it together with others) or damaged."""
        try:
            data = self._storage.read(uri)
        except InputError:
            return []
        if not uri.endswith(f"-{_digest(data)}.parquet"):
            log.warning("%s is damaged: what was answered there is asked again", uri)
            return []
        table = pq.read_table(io.BytesIO(data))
        return table.to_pylist() if table.schema.equals(CALL_SCHEMA) else []

    def _write(self, number: int | None = None) -> None:
        self._flushed = time.monotonic()
        if not self._new:
            return
        number = len(self._own) if number is None else number
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(self._new, schema=CALL_SCHEMA), buffer, compression="zstd")
        data = buffer.getvalue()
        uri = join(self._folder, f"{self._prefix}-{self._writer}-{number:04d}-{_digest(data)}.parquet")
        self._storage.write(uri, data)
        self._own.append(uri)
        self._new = []


class JournalledText:
    """TextEngine that asks the journal first."""

    def __init__(self, engine: TextEngine, journal: Journal) -> None:
        self._engine, self._journal = engine, journal

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        """See `lancer.engines.protocols.TextEngine`; answers from the journal are marked as reused."""
        keys = [request_digest(prompt, sampling) for prompt in prompts]
        answers = [_generation(self._journal.get(key)) for key in keys]
        todo = [i for i, answer in enumerate(answers) if answer is None]
        chunks = [todo[at : at + CHUNK] for at in range(0, len(todo), CHUNK)]
        with ThreadPoolExecutor(CHUNKS_IN_FLIGHT) as pool:
            running: dict[Future[list[Generation]], list[int]] = {}
            try:
                for chunk in chunks:
                    if len(running) == CHUNKS_IN_FLIGHT:
                        self._collect(running, keys, answers)
                    asked = [prompts[i] for i in chunk]
                    running[pool.submit(self._engine.generate, asked, sampling, priority=priority)] = chunk
                while running:
                    self._collect(running, keys, answers)
            except LancerError:
                for future in running:
                    future.cancel()
                for future, chunk in running.items():
                    with suppress(LancerError, CancelledError):
                        self._take(chunk, future.result(), keys, answers)
                raise
        return [answer for answer in answers if answer is not None]

    def _collect(
        self, running: dict[Future[list[Generation]], list[int]], keys: list[str], answers: list[Generation | None]
    ) -> None:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            chunk = running.pop(future)
            self._take(chunk, future.result(), keys, answers)

    def _take(
        self, chunk: list[int], generations: list[Generation], keys: list[str], answers: list[Generation | None]
    ) -> None:
        for i, generation in zip(chunk, generations, strict=True):
            answers[i] = generation
        self._journal.add([_text_row(keys[i], g) for i, g in zip(chunk, generations, strict=True) if not g.error])


class JournalledScorer:
    """PairScorer that asks the journal first. The unit is a block, whose scores depend on nothing else."""

    def __init__(self, engine: PairScorer, journal: Journal) -> None:
        self._engine, self._journal = engine, journal

    def score(self, blocks: Sequence[Block]) -> list[ScoredBlock]:
        """See `lancer.engines.protocols.PairScorer`; answers from the journal are marked as reused."""
        keys = [block_digest(block) for block in blocks]
        scored = [_scored(self._journal.get(key), block) for key, block in zip(keys, blocks, strict=True)]
        todo = [i for i, known in enumerate(scored) if known is None]
        if todo:
            for i, new in zip(todo, self._engine.score([blocks[i] for i in todo]), strict=True):
                scored[i] = new
                if np.isfinite(new.scores).all():
                    self._journal.add([_score_row(keys[i], new)])
        return [block for block in scored if block is not None]


class JournalledEngines:
    """Every engine of a run behind the journals of one shard. Searches are cheap and not written down."""

    def __init__(self, engines: Engines, journals: dict[str, Journal]) -> None:
        self._engines, self._journals = engines, journals

    def text(self, name: str) -> TextEngine:
        """The text engine of that name."""
        return JournalledText(self._engines.text(name), self._journals[name])

    def scorer(self, name: str) -> PairScorer:
        """The scorer of that name."""
        return JournalledScorer(self._engines.scorer(name), self._journals[name])

    def search(self, name: str) -> SearchEngine:
        """The search engine of that name."""
        return self._engines.search(name)

    def documents(self) -> Documents:
        """Document text."""
        return self._engines.documents()

    def context(self, name: str) -> int | None:
        """See `lancer.stages.base.Engines`."""
        return self._engines.context(name)

    def tokens(self, name: str) -> ChatTokens | None:
        """See `lancer.stages.base.Engines`."""
        return self._engines.tokens(name)


def block_digest(block: Block) -> str:
    """Identifies what a scorer is asked."""
    digest = hashlib.sha256(f"{len(block.documents)} {len(block.sub_questions)}".encode())
    for text in (*block.documents, *block.sub_questions):
        data = text.encode()
        digest.update(f"{len(data)} ".encode() + data)
    return digest.hexdigest()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def _generation(answer: Answer | None) -> Generation | None:
    if answer is None:
        return None
    row = answer.row
    counts = {n: row[n] for n in ("prompt_tokens", "cached_tokens", "output_tokens", "queue_s", "run_s")}
    logprobs = tuple(row["logprobs"] or ())
    return Generation(text=row["text"], finish=row["finish"], logprobs=logprobs, reused=answer.reused, **counts)


def _scored(answer: Answer | None, block: Block) -> ScoredBlock | None:
    if answer is None:
        return None
    row = answer.row
    scores = np.array(row["scores"], dtype=np.float32).reshape(len(block.documents), len(block.sub_questions))
    return ScoredBlock(
        scores=scores, tokens=row["prompt_tokens"], queue_s=row["queue_s"], run_s=row["run_s"], reused=answer.reused
    )


def _text_row(key: str, g: Generation) -> dict[str, Any]:
    return {
        "key": key,
        "text": g.text,
        "finish": g.finish,
        "logprobs": list(g.logprobs) or None,
        "scores": None,
        "prompt_tokens": g.prompt_tokens,
        "cached_tokens": g.cached_tokens,
        "output_tokens": g.output_tokens,
        "queue_s": g.queue_s,
        "run_s": g.run_s,
    }


def _score_row(key: str, block: ScoredBlock) -> dict[str, Any]:
    return {
        "key": key,
        "text": None,
        "finish": None,
        "logprobs": None,
        "scores": block.scores.ravel().tolist(),
        "prompt_tokens": block.tokens,
        "cached_tokens": 0,
        "output_tokens": 0,
        "queue_s": block.queue_s,
        "run_s": block.run_s,
    }
