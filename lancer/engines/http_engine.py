"""A text engine: an OpenAI-compatible server (vLLM's own, or a provider's) over HTTP.

One thread runs an event loop with `concurrency` workers; callers wait on futures. A worker takes the waiting call of
the lowest priority value and keeps at it until it is answered, refused or out of attempts, so a server that asks to
slow down gets fewer calls. What is wrong with one prompt is that call's error; what concerns every call (key, model,
address, a server that is gone) ends the engine.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import random
import re
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, model_validator

from lancer.closed import Closed
from lancer.engines.chat_completions import OWN_FIELDS, SAMPLING_FIELDS, Fatal, Retry, read_reply, request_body
from lancer.engines.meter import Meter
from lancer.engines.protocols import EngineClock, Generation, Message, Sampling
from lancer.errors import EngineError, SetupError

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

BACKOFF_S: Final = 0.5  # before the second attempt; doubled before each further one
BACKOFF_MAX_S: Final = 60.0
WAIT_MAX_S: Final = 300.0  # a server that asks to wait longer (a daily quota) is not waited for
# Calls in a row that ran out of attempts, beyond those in flight together: more than the sub-questions of one document.
DEAD_AFTER: Final = 32


class HttpConfig(Closed):
    """Which server, and how it is called. The key stays in the environment: the config has the variable's name only."""

    model_config = ConfigDict(hide_input_in_errors=True)

    kind: Literal["http"] = "http"
    base_url: str
    """As OpenAI's client takes it: what comes before /chat/completions, mostly http(s)://host/v1."""
    model: str = Field(min_length=1)  # the server's name for it
    revision: str | None = None
    """Which weights the server has under that name; it cannot be asked, so this is only for fingerprints."""
    tokenizer: str | None = None
    """The model whose tokenizer counts as the server does, as `model` of a vLLM engine; null = tokens are not known."""
    tokenizer_revision: str | None = None
    max_model_len: int | None = Field(None, gt=0)  # the server's; null = the model's own, where there is a tokenizer
    api_key_env: str | None = None
    concurrency: int = Field(32, ge=1)  # calls in flight, of one replica
    timeout_s: float = Field(600, gt=0)  # of one attempt, start to end
    connect_timeout_s: float = Field(10, gt=0)
    retries: int = Field(5, ge=0)
    extra_body: dict[str, Any] = Field(default_factory=dict)
    """Further fields of every request, as `chat_template_kwargs`; null leaves out one that the server refuses."""
    replicas: int = Field(1, ge=1)
    num_cpus: float = Field(0.25, ge=0)

    # Before the fields and for the whole model: a key that was put in a wrong place must not be quoted as found there.
    @model_validator(mode="before")
    @classmethod
    def _no_key_inside(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        name = given.get("api_key_env")
        if isinstance(name, str) and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError("api_key_env is the name of an environment variable (letters, digits, _), not a key")
        if isinstance(url := given.get("base_url"), str):
            _check_url(url)
            return given | {"base_url": url.rstrip("/")}
        return given

    @model_validator(mode="after")
    def _extra_fields(self) -> HttpConfig:
        for name, value in self.extra_body.items():
            if name in OWN_FIELDS or (name in SAMPLING_FIELDS and value is not None):
                remedy = "; null leaves it out" if name in SAMPLING_FIELDS else ""
                raise ValueError(f"extra_body must not set {name!r}, the engine does{remedy}")
        return self

    def result_fields(self) -> dict[str, object]:
        """What enters fingerprints. Not the address: the same model may move; `revision` tells two of a name apart.

        `room` decides where documents are cut: no answer to a prompt depends on it.
        """
        room = self.model_dump(include={"tokenizer", "tokenizer_revision", "max_model_len"})
        return self.model_dump(include={"model", "revision", "extra_body"}) | {"room": room}


@dataclass(eq=False)
class _Call:
    body: bytes
    submitted: float = 0.0
    logprobs_of: tuple[str, ...] | None = None
    done: Future[Generation] = field(default_factory=Future)


class HttpEngine:
    """A `TextEngine`. Close it when done: it owns a thread and connections.

    The server's tokens are returned as it reports them. `run_s` of a call is the time of its requests, failed ones
    included; `queue_s` is all waiting before and between them.

    Raises:
        SetupError: the environment variable of the key is missing, or holds what no key can be.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._meter = Meter()
        self.config = config
        self._key = _read_key(config.api_key_env)
        self._lock = threading.Lock()  # guards the next two
        self._ended = ""  # why no call is served any more
        self._waiting: set[_Call] = set()
        self._order = itertools.count()
        self._answered, self._failed_in_row = False, 0
        self._warned = False
        logger = logging.getLogger("httpx")  # it says one line per request at INFO
        logger.setLevel(logger.level or logging.WARNING)
        started: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="http-engine", daemon=True)
        self._thread.start()
        self._loop = started.result()
        self._meter.ready()

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        """See `TextEngine.generate`."""
        extra = self.config.extra_body
        try:
            bodies = [json.dumps(request_body(self.config.model, p, sampling, extra)).encode() for p in prompts]
        except ValueError as error:
            return [_failed(str(error)) for _ in prompts]
        now = time.monotonic()
        calls = [_Call(body, now, sampling.logprobs_of) for body in bodies]
        with self._lock:
            if self._ended:
                raise EngineError(self._ended)
            self._waiting.update(calls)
            entries = [(priority, next(self._order), call) for call in calls]
            self._loop.call_soon_threadsafe(self._admit, entries)
        return [self._whole(call.done.result(), sampling) for call in calls]

    def _whole(self, generation: Generation, sampling: Sampling) -> Generation:
        """With the thinking block that the template opened, where the output ended in it and the template is known.

        An answer that came to its end is left alone: the server may have taken the thinking off.
        """
        if generation.finish != "length" or self.config.tokenizer is None:
            return generation
        from lancer.engines.tokenizers import model_tokens  # it knows every kind of engine, this one included

        known = model_tokens(self.config)
        return (
            generation
            if known is None
            else replace(generation, text=known.chat.whole_output(generation.text, sampling))
        )

    def clock(self) -> EngineClock:
        """Start-up until calls are taken; busy = some request in flight; calls that ended, answered or not."""
        return self._meter.clock()

    def close(self) -> None:
        """Drop what is in flight and end the thread; waiting calls get EngineError. May be called again."""
        with self._lock:
            if not self._ended:
                self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        asyncio.run(self._main(started))

    async def _main(self, started: Future[asyncio.AbstractEventLoop]) -> None:
        import httpx

        self._queue: asyncio.PriorityQueue[tuple[int, int, _Call]] = asyncio.PriorityQueue()
        self._closing = asyncio.Event()
        n = self.config.concurrency
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        ended = ""
        try:
            async with (
                httpx.AsyncClient(
                    headers=headers,
                    timeout=httpx.Timeout(None, connect=self.config.connect_timeout_s),
                    limits=httpx.Limits(max_connections=n, max_keepalive_connections=n),
                ) as client,
                asyncio.TaskGroup() as tasks,
            ):
                for _ in range(n):
                    tasks.create_task(self._work(client))
                tasks.create_task(self._until_closed())
                started.set_result(asyncio.get_running_loop())
        except* EngineError as group:
            ended = str(group.exceptions[0])
        except* Exception as group:
            log.exception("the HTTP engine %r died", self.config.model)
            ended = f"the HTTP engine {self.config.model!r} died: {group.exceptions[0]!r}"
        if not started.done():
            started.set_exception(EngineError(ended))
        with self._lock:
            self._ended = ended
        for call in self._waiting:
            call.done.set_exception(EngineError(ended))
        self._waiting.clear()

    def _admit(self, entries: list[tuple[int, int, _Call]]) -> None:
        for entry in entries:
            self._queue.put_nowait(entry)

    async def _until_closed(self) -> None:
        await self._closing.wait()
        raise EngineError(f"the HTTP engine {self.config.model!r} is closed")

    async def _work(self, client: httpx.AsyncClient) -> None:
        while True:
            _, _, call = await self._queue.get()
            generation = await self._call(client, call)
            self._meter.count([generation])
            if not (generation.error or generation.prompt_tokens or self._warned):
                self._warned = True
                log.warning("%s reports no token usage: it counts as 0", self.config.base_url)
            with self._lock:
                self._waiting.discard(call)
            call.done.set_result(generation)

    async def _call(self, client: httpx.AsyncClient, call: _Call) -> Generation:
        """One call to its end; EngineError for what concerns every call."""
        run_s, attempts, failed = 0.0, self.config.retries + 1, Retry("")
        for attempt in range(1, attempts + 1):
            sent = time.monotonic()
            reply = await self._attempt(client, call)
            run_s += time.monotonic() - sent
            if isinstance(reply, Generation):
                self._failed_in_row, self._answered = 0, self._answered or not reply.error
                return _timed(reply, call, run_s)
            if isinstance(reply, Fatal):
                if reply.maybe and self._answered:
                    return _timed(_failed(reply.reason), call, run_s)
                raise EngineError(f"{self.config.base_url}, model {self.config.model!r}: {reply.reason}")
            failed = reply
            if failed.after_s > WAIT_MAX_S:
                failed = replace(failed, reason=f"{failed.reason}; it asks to wait {failed.after_s:.0f} s")
                break
            if attempt < attempts:
                wait = max(backoff(attempt), failed.after_s * random.uniform(1, 1.1))
                log.info("attempt %d of %d failed: %s; next in %.1f s", attempt, attempts, failed.reason, wait)
                await asyncio.sleep(wait)
        reason = f"{failed.reason} (attempt {attempt} of {attempts})"
        self._failed_in_row += 1
        if not failed.connected or self._failed_in_row >= DEAD_AFTER + self.config.concurrency:
            raise EngineError(f"{self.config.base_url} does not serve: {reason}")
        return _timed(_failed(reason), call, run_s)

    async def _attempt(self, client: httpx.AsyncClient, call: _Call) -> Generation | Retry | Fatal:
        import httpx

        try:
            # httpx's own timeouts are of single reads: an answer that trickles in would never time out.
            with self._meter:
                async with asyncio.timeout(self.config.timeout_s):
                    reply = await client.post(f"{self.config.base_url}/chat/completions", content=call.body)
        except TimeoutError:
            return Retry(f"no answer within {self.config.timeout_s:g} s")
        except httpx.RequestError as error:
            connected = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
            what = "the answer broke off" if connected else "no connection"
            return Retry(f"{what} ({type(error).__name__}: {error})", connected=connected)
        return read_reply(reply.status_code, reply.headers, reply.content, self._key, call.logprobs_of)


def backoff(attempt: int) -> float:
    """Seconds to wait after failed attempt `attempt` (from 1): doubling up to a minute, jittered by half."""
    return min(BACKOFF_S * 2.0 ** (attempt - 1), BACKOFF_MAX_S) * random.uniform(0.5, 1)


def _timed(generation: Generation, call: _Call, run_s: float) -> Generation:
    return replace(generation, run_s=run_s, queue_s=max(0.0, time.monotonic() - call.submitted - run_s))


def _failed(reason: str) -> Generation:
    return Generation(text="", error=reason, finish="error")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        plain = parts.scheme in ("http", "https") and parts.hostname and not (parts.query or parts.fragment)
        if plain and parts.username is None and parts.port != 0:
            return
    except ValueError:  # a port that is no number, half an IPv6 address
        pass
    raise ValueError("base_url must be http(s)://host[:port][/path], without user, key or query") from None


def _read_key(name: str | None) -> str:
    """The key, or "" when none is asked for. Neither it nor a part of it enters a message."""
    if name is None:
        return ""
    key = os.environ.get(name, "").strip()
    if not key:
        raise SetupError(f"the environment variable {name}, which api_key_env names, is not set where the engine runs")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise SetupError(f"the environment variable {name} holds characters that no key can have")
    return key
