"""A text engine: recorded outputs, by the digest of their request or in recorded order; and the recorder.

For runs without a model (offline, campaigns over given outputs, tests). A record is one line of JSON Lines: `text`, and
where they are not the defaults `error`, `finish`, `prompt_tokens`, `cached_tokens`, `output_tokens`, `logprobs`; with
`key`, the `request_digest` of what was asked, or in recorded order with `query_id`. Times are not recorded: a replay
has its own.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Final, Literal, Protocol

from pydantic import Field

from lancer.closed import Closed
from lancer.engines.meter import Meter
from lancer.engines.protocols import EngineClock, Generation, Message, Sampling
from lancer.errors import EngineError
from lancer.formats.records import Place, Record, read_records
from lancer.storage import Storage

_TEXTS: Final = ("error", "finish")
_COUNTS: Final = ("prompt_tokens", "cached_tokens", "output_tokens")
_DEFAULTS: Final = Generation(text="")
_FIELDS: Final = frozenset({"key", "query_id", "text", "logprobs", *_TEXTS, *_COUNTS})
_JSON: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))
_SAMPLING_DEFAULTS: Final = {f.name: f.default for f in fields(Sampling)}


class ReplayConfig(Closed):
    """Which recorded outputs, and how a request finds its own."""

    kind: Literal["replay"] = "replay"
    path: str  # JSON Lines, local or s3://
    order: Literal["digest", "recorded"] = "digest"
    """recorded: the n-th prompt about a query gets the n-th line of that query, whatever was asked in between, or was
    answered before and is not asked."""
    strict: bool = False  # a prompt without a record ends the run instead of failing by itself
    replicas: int = Field(1, ge=1)
    num_cpus: float = Field(0.25, ge=0)

    def result_fields(self) -> dict[str, object]:
        """What enters fingerprints, beside `recorded_digest`."""
        return self.model_dump(include={"order"})


def request_digest(messages: Sequence[Message], sampling: Sampling) -> str:
    """SHA-256 over what decides an output: the messages, and the sampling without what is default or has no effect.

    Marks that only help a cache are left out: padded or not, it is one request. So are defaults: a new field of
    `Sampling` leaves recorded keys valid. So is the seed at temperature 0.
    """
    return RequestDigests(sampling)(messages)


class RequestDigests:
    """`request_digest` of many requests under one sampling. What consecutive prompts share, by their mark, is hashed
    once: 1,000 prompts of 1,100 characters take 2 ms instead of 11."""

    def __init__(self, sampling: Sampling) -> None:
        self._end = f"]{_sampling_part(sampling)}"
        self._shared: tuple[Sequence[Message], str, str] | None = None
        self._begun = hashlib.sha256()

    def __call__(self, messages: Sequence[Message]) -> str:
        """Of one request."""
        if not messages:
            return hashlib.sha256(f"[{self._end}".encode()).hexdigest()
        before, last = messages[:-1], messages[-1]
        role, content = last["role"], last["content"]
        shared = content[: last.get("shared", 0)]
        if (before, role, shared) != self._shared:
            self._shared = (before, role, shared)
            turns = "".join(f"{_turn(m)}," for m in before)
            self._begun = hashlib.sha256(_bytes(f"[{turns}[{_JSON.encode(role)},{_JSON.encode(shared)[:-1]}"))
        digest = self._begun.copy()
        digest.update(_bytes(f"{_JSON.encode(content[len(shared) :])[1:]}{_scored(last)}]{self._end}"))
        return digest.hexdigest()


def recorded_digest(path: str, storage: Storage) -> str:
    """SHA-256 of a file of recorded outputs; InputError when there is none."""
    return hashlib.sha256(storage.read(path)).hexdigest()


class ReplayEngine:
    """A `TextEngine` of recorded outputs. Everything is in memory, about 500 bytes a record.

    Raises:
        InputError: the file is missing, or a line is not a record of its order.
    """

    def __init__(self, config: ReplayConfig, storage: Storage) -> None:
        self._meter = Meter()
        self.config = config
        self._by_key = dict(_read(config.path, storage, keyed=config.order == "digest"))
        self._meter.ready()

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        """See `TextEngine.generate`. `priority` has no effect; with `strict`, EngineError for a missing record."""
        with self._meter:
            key: Callable[[Sequence[Message]], str | None] = RequestDigests(sampling)
            if self.config.order == "recorded":
                key = _place
            found = [self._by_key.get(key(prompt) or "") or self._missing(prompt) for prompt in prompts]
        self._meter.count(found)
        return found

    def clock(self) -> EngineClock:
        """Start-up = reading the file; busy = looking records up; tokens as recorded."""
        return self._meter.clock()

    def close(self) -> None:
        """Nothing to free."""

    def _missing(self, prompt: Sequence[Message]) -> Generation:
        start = prompt[-1]["content"][:60] if prompt else ""
        reason = f"no recorded output in {self.config.path} for the prompt {start!r}..."
        if self.config.strict:
            raise EngineError(reason)
        return Generation(text="", error=reason, finish="error")


class RecordedEngine(Protocol):
    """What can be recorded: a text engine with its clock."""

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]: ...
    def clock(self) -> EngineClock: ...
    def close(self) -> None: ...


class RecordingEngine:
    """A `TextEngine` that passes calls on to another, and writes what it answers when it is closed.

    The file is committed in one step, sorted by digest. What it holds already is kept, so that a resumed run adds to
    it. Of several outputs of one request the first that is no error stays.

    Raises:
        InputError: the file holds something else.
    """

    def __init__(self, engine: RecordedEngine, storage: Storage, path: str) -> None:
        self._engine, self._storage, self._path = engine, storage, path
        self._lock = threading.Lock()
        self._records = dict(_read(path, storage, keyed=True)) if storage.exists(path) else {}

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        """See `TextEngine.generate`."""
        generations = self._engine.generate(prompts, sampling, priority=priority)
        keys = list(map(RequestDigests(sampling), prompts))
        with self._lock:
            for key, generation in zip(keys, generations, strict=True):
                before = self._records.get(key)
                if before is None or (before.error and not generation.error):
                    self._records[key] = generation
        return generations

    def clock(self) -> EngineClock:
        """Of the engine that is recorded."""
        return self._engine.clock()

    def close(self) -> None:
        """Write the file and close the engine that is recorded. OutputError or StorageError when it cannot be written.

        May be called again.
        """
        with self._lock:
            lines = [_JSON.encode({"key": key, **_record(g)}) + "\n" for key, g in sorted(self._records.items())]
            self._storage.write(self._path, "".join(lines).encode())
        self._engine.close()


def _sampling_part(sampling: Sampling) -> str:
    values = {name: getattr(sampling, name) for name in _SAMPLING_DEFAULTS}
    if sampling.temperature == 0:
        del values["seed"]
    values["temperature"] = float(sampling.temperature)
    return _JSON.encode({name: value for name, value in values.items() if value != _SAMPLING_DEFAULTS[name]})


def _turn(message: Message) -> str:
    return f"[{_JSON.encode(message['role'])},{_JSON.encode(message['content'])}{_scored(message)}]"


def _scored(message: Message) -> str:
    return f",{_JSON.encode(message['scored'])}" if "scored" in message else ""


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _place(prompt: Sequence[Message]) -> str | None:
    return _key(prompt[-1]["call"]) if prompt and "call" in prompt[-1] else None


def _key(call: tuple[str, int]) -> str:
    return f"{call[1]} {call[0]}"


def _record(generation: Generation) -> dict[str, object]:
    values = {name: getattr(generation, name) for name in (*_TEXTS, *_COUNTS, "logprobs")}
    return {"text": generation.text} | {name: v for name, v in values.items() if v != getattr(_DEFAULTS, name)}


def _read(path: str, storage: Storage, *, keyed: bool) -> Iterator[tuple[str, Generation]]:
    """Records with their keys, or with their query and their number in it as keys."""
    seen: set[str] = set()
    lines: Counter[str] = Counter()  # by query
    for place, record in read_records(path, storage):
        key = record.get("key")
        if not keyed:
            if key is not None:
                raise place.at("key").error("records of order 'recorded' have no key; with keys, use order 'digest'")
            query_id = record.get("query_id")
            if not isinstance(query_id, str):
                raise place.at("query_id").expected(query_id, "the id of the query that was asked about")
            key = _key((query_id, lines[query_id]))
            lines[query_id] += 1
        elif not isinstance(key, str) or len(key) != 64:
            raise place.at("key").expected(key, "a request digest of 64 hexadecimal digits")
        if key in seen:
            raise place.at("key").error(f"{key} is recorded twice")
        seen.add(key)
        yield key, _generation(record, place)


def _generation(record: Record, place: Place) -> Generation:
    if unknown := record.keys() - _FIELDS:
        raise place.at(min(unknown)).error(f"unknown; allowed: {', '.join(sorted(_FIELDS))}")
    texts = {name: record.get(name, getattr(_DEFAULTS, name)) for name in _TEXTS}
    if not isinstance(text := record.get("text"), str):
        raise place.at("text").expected(text, "the output as a text")
    for name, value in texts.items():
        if not isinstance(value, str):
            raise place.at(name).expected(value, "a text")
    counts = {}
    for name in _COUNTS:
        value = record.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise place.at(name).expected(value, "a number of tokens")
        counts[name] = value
    logprobs = record.get("logprobs", [])
    if not isinstance(logprobs, list) or not all(
        isinstance(p, int | float) and not isinstance(p, bool) for p in logprobs
    ):
        raise place.at("logprobs").expected(logprobs, "a list of numbers")
    return Generation(
        text=text,
        error=str(texts["error"]),
        finish=str(texts["finish"]),
        prompt_tokens=counts["prompt_tokens"],
        cached_tokens=counts["cached_tokens"],
        output_tokens=counts["output_tokens"],
        logprobs=tuple(float(p) for p in logprobs),
    )
