"""What engines answered, kept apart from what stages made of it: an answer is paid for once.

Between a stage and its engine stands a journal. A call whose key is in it is answered from it; every other goes to the
engine, and its answer is written down within `FLUSH_S`. So a killed shard goes on where it was, a fixed parser reads
the old answers again, added queries pay for themselves only, and runs that share a `store` share their calls. A key
covers all that an answer depends on: the request itself here, the engine and its model by the folder.

    <store>/calls/<engine identity>/<shard prefix>-<writer>-<number>-<digest>.parquet

Failed calls are not written down: they are made again. So are those of a damaged file. Where an answer could not be
used, a retry asks again (`Sampling.fresh`): the new answer is written down beside the old one, its key with a number
behind it, and of several the last one counts.
"""

from __future__ import annotations

import io
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from lancer.engines.protocols import (
    Generation,
    Message,
    Sampling,
    TextEngine,
)
from lancer.engines.replay import RequestDigests
from lancer.errors import EngineError, InputError, LancerError
from lancer.pipeline.named import is_whole, with_digest
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
        pa.field("documents", pa.list_(pa.binary())),  # beside scores: digests of the texts
        pa.field("sub_questions", pa.list_(pa.binary())),
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


def numbered(key: str, number: int) -> str:
    """The key of a call that is made once more; 0 = the first time."""
    return f"{key}~{number}" if number else key


class CallRow(NamedTuple):
    """A row of `CALL_SCHEMA`; what is null there has a default."""

    key: str
    text: str | None = None
    finish: str | None = None
    logprobs: list[float] | None = None
    scores: list[float] | None = None
    documents: list[bytes] | None = None
    sub_questions: list[bytes] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    queue_s: float = 0.0
    run_s: float = 0.0


@dataclass(frozen=True)
class Answer:
    """`reused`: paid already; else made for this shard just now, by a call that then failed."""

    row: CallRow
    reused: bool


class Journal:
    """The answers of one engine for one shard: `files` are what is there, new ones go below `folder`."""

    def __init__(self, storage: Storage, folder: str, prefix: str, files: Iterable[str] = ()) -> None:
        self._storage, self._folder, self._prefix = storage, folder, prefix
        self._files = tuple(files)
        self._paid: dict[str, CallRow] | None = None  # by key, of the files
        self._numbers: dict[str, int] = {}  # of the last answer there, of those that were asked for again
        self._made: dict[str, CallRow] = {}  # by key, since
        self._new: list[CallRow] = []  # not yet written
        self._own: list[str] = []
        self._lock = threading.Lock()
        self._writer = uuid.uuid4().hex[:12]
        self._flushed = time.monotonic()

    def get(self, keys: Sequence[str]) -> list[Answer | None]:
        """The answer to each call, or None. The files are read at the first call."""
        with self._lock:
            if self._paid is None:
                self._paid = {row.key: row for row in self._read_files()}
                for key, _, number in (name.partition("~") for name in self._paid if "~" in name):
                    self._numbers[key] = max(int(number), self._numbers.get(key, 0))
            if not self._paid and not self._made:
                return [None] * len(keys)
            return [self._answer(key, self._paid) for key in keys]

    def scored(self) -> list[Answer]:
        """All answers of a scorer: those of the files first, in their order."""
        self.get(())
        with self._lock:
            rows = {**(self._paid or {}), **self._made}
            return [Answer(row, reused=key not in self._made) for key, row in rows.items() if row.scores is not None]

    def next_numbers(self, keys: Sequence[str]) -> list[int]:
        """Of each call, the number under which none of the files has an answer."""
        self.get(())
        return [self._numbers.get(key, 0) + 1 for key in keys]

    def _answer(self, key: str, paid: dict[str, CallRow]) -> Answer | None:
        row = self._made.get(key) or paid.get(numbered(key, self._numbers.get(key, 0)))
        return row and Answer(row, reused=key not in self._made)

    def add(self, rows: Sequence[CallRow]) -> None:
        """Takes answers; writes them when the last time is `FLUSH_S` ago."""
        with self._lock:
            self._new.extend(rows)
            self._made.update((row.key, row) for row in rows)
            if time.monotonic() - self._flushed >= FLUSH_S:
                self._write()

    def close(self) -> None:
        """Writes what is not yet written, as one file with what this writer wrote before."""
        with self._lock:
            if self._own and (self._new or len(self._own) > 1):
                self._new = list(self._made.values())
                before, self._own = self._own, []
                self._write(number=len(before))
                for uri in before:
                    self._storage.delete(uri)
            self._write()

    def _read_files(self) -> Iterator[CallRow]:
        """The rows of all files. Where one is gone, its writer has put it together with others: that one is found."""
        todo, seen = list(self._files), set(self._files)
        while todo:
            gone: set[str] = set()
            for uri in todo:
                try:
                    yield from self._read(uri)
                except InputError:
                    gone.add(call_prefix(uri))
            there = [entry.uri for prefix in sorted(gone) for entry in self._storage.list(self._folder, f"{prefix}-")]
            todo = [uri for uri in there if uri not in seen]
            seen.update(todo)

    def _read(self, uri: str) -> list[CallRow]:
        """The rows of a file; none when it is damaged. InputError: it is gone."""
        data = self._storage.read(uri)
        if not is_whole(uri, data):
            log.warning("%s is damaged: what was answered there is asked again", uri)
            return []
        table = pq.read_table(io.BytesIO(data))
        if not table.schema.equals(CALL_SCHEMA):
            return []
        return [CallRow(*values) for values in zip(*(column.to_pylist() for column in table.columns), strict=True)]

    def _write(self, number: int | None = None) -> None:
        self._flushed = time.monotonic()
        if not self._new:
            return
        number = len(self._own) if number is None else number
        buffer = io.BytesIO()
        columns = [pa.array(c, f.type) for c, f in zip(zip(*self._new, strict=True), CALL_SCHEMA, strict=True)]
        pq.write_table(pa.table(columns, schema=CALL_SCHEMA), buffer, compression="zstd")
        data = buffer.getvalue()
        uri = with_digest(join(self._folder, f"{self._prefix}-{self._writer}-{number:04d}"), data)
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
        """See `lancer.engines.protocols.TextEngine`; answers from the journal are marked as reused.

        What is asked again has a seed of its own.
        """
        fresh, sampling = sampling.fresh, replace(sampling, fresh=False)
        keys = list(map(RequestDigests(sampling), prompts))
        numbers = self._journal.next_numbers(keys) if fresh else [0] * len(keys)
        keys = list(map(numbered, keys, numbers))
        answers = [_generation(answer) for answer in self._journal.get(keys)]
        todo = [i for i, answer in enumerate(answers) if answer is None]
        with ThreadPoolExecutor(CHUNKS_IN_FLIGHT) as pool:
            running: dict[Future[list[Generation]], list[int]] = {}
            try:
                for number, chunk in _chunks(todo, numbers):
                    if len(running) == CHUNKS_IN_FLIGHT:
                        self._collect(running, keys, answers)
                    asked, seeded = [prompts[i] for i in chunk], replace(sampling, seed=sampling.seed + number)
                    running[pool.submit(self._engine.generate, asked, seeded, priority=priority)] = chunk
                while running:
                    self._collect(running, keys, answers)
            except LancerError:
                for future in running:
                    future.cancel()
                for future, chunk in running.items():
                    with suppress(LancerError, CancelledError):
                        self._take(chunk, future, keys, answers)
                raise
        return [answer for answer in answers if answer is not None]

    def _collect(
        self, running: dict[Future[list[Generation]], list[int]], keys: list[str], answers: list[Generation | None]
    ) -> None:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            self._take(running.pop(future), future, keys, answers)

    def _take(
        self, chunk: list[int], future: Future[list[Generation]], keys: list[str], answers: list[Generation | None]
    ) -> None:
        """What a call gave; or what it gave before it failed, so that it is in the journal when its error is raised."""
        failed: EngineError | None = None
        try:
            given = dict(enumerate(future.result()))
        except EngineError as error:
            failed, given = error, error.answered
        new = {chunk[i]: generation for i, generation in given.items()}
        self._journal.add([_text_row(keys[i], g) for i, g in new.items() if not g.error])
        if failed is not None:
            raise failed
        for i, generation in new.items():
            answers[i] = generation


def _chunks(todo: Sequence[int], numbers: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """What goes out together: of one number, `CHUNK` prompts at most."""
    for number in sorted({numbers[i] for i in todo}):
        own = [i for i in todo if numbers[i] == number]
        for at in range(0, len(own), CHUNK):
            yield number, own[at : at + CHUNK]


def _generation(answer: Answer | None) -> Generation | None:
    if answer is None:
        return None
    row = answer.row
    return Generation(
        text=row.text or "",
        finish=row.finish or "",
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        queue_s=row.queue_s,
        run_s=row.run_s,
        reused=answer.reused,
        logprobs=tuple(row.logprobs or ()),
    )


def _text_row(key: str, g: Generation) -> CallRow:
    logprobs = list(g.logprobs) or None
    counts = (g.prompt_tokens, g.cached_tokens, g.output_tokens)
    return CallRow(key, g.text, g.finish, logprobs, None, None, None, *counts, g.queue_s, g.run_s)
