"""Engines as pools of Ray actors: one pool per distinct engine config, shared by every stage and shard that uses it.

An actor builds its engine at the first call and serves many callers at once (threads), so that the engine is fed from
several shards together. Text prompts are routed by a hash of request and document, so that the prompts of one document
meet the same prefix cache. A scorer's or searcher's call goes to one replica whole: what is packed
together then does not depend on how many replicas there are.
"""

from __future__ import annotations

import gc
import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final

import ray

from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.protocols import Block, Documents, EngineClock, Generation, Hit, Message, Sampling, ScoredBlock
from lancer.engines.sources import DocumentSource
from lancer.engines.table import EngineConfig, build_engine
from lancer.engines.tokenizers import context_of, model_tokens
from lancer.errors import CallFailed, EngineDied, EngineError, EngineNotStarted, LancerError, unforeseen
from lancer.storage import Storage

CALLERS = 64  # threads of an actor that serve calls; further calls wait in Ray
# Threads for what must not wait behind calls. A clock may wait for an engine that is being built, the others never do.
GROUPS: Final = {"clock": 2, "signs": 2}
BACK_S = 120.0  # a new process for an actor takes seconds; longer means that there is no place for it


@dataclass(frozen=True)
class Doing:
    """Calls under way in a replica: how many, and the method and seconds of the oldest."""

    calls: int = 0
    oldest: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        if not self.calls:
            return "no call under way"
        what = "1 call" if self.calls == 1 else f"{self.calls} calls, the oldest"
        return f"{what} ({self.oldest}) for {self.seconds:.0f} s"


class EngineActor:
    """Runs one engine; the methods are those of `lancer.engines.protocols`.

    The engine is built at the first call, and again after it died, `restarts` times at most. A call that is `alone`
    waits until no other runs and keeps others out: if the engine dies then, that call is the cause.
    """

    def __init__(
        self, config: EngineConfig, source: DocumentSource, storage: Storage, asked: float, *, name: str, restarts: int
    ) -> None:
        self._config, self._source, self._storage = config, source, storage
        self._name, self._restarts = name, restarts  # those left; a new process of the actor begins again
        self._building = threading.Lock()
        self._built: Any = None
        self._since = asked  # time.time() since when a device is held for the engine that is built next
        self._before = NO_TIME  # of engines that died
        self._changed = threading.Condition()
        self._running, self._alone, self._alone_waiting = 0, False, 0
        self._calls: dict[int, tuple[float, str]] = {}  # under way: when it came (monotonic), method
        self._numbers = count()

    def _engine(self) -> Any:
        with self._building:
            if self._built is None:
                if self._restarts < 0:
                    raise _too_often(self._name)
                waited = max(0.0, time.time() - self._since)
                self._built = build_engine(self._config, self._source, self._storage)
                self._before = replace(self._before, startup_s=self._before.startup_s + waited)
                gc.collect()
                gc.freeze()  # what an engine is made of need not be looked at with the garbage of every call
            return self._built

    @ray.method(concurrency_group="signs")
    def ping(self) -> None:
        """Answers when the process is there."""

    @ray.method(concurrency_group="signs")
    def doing(self) -> Doing:
        """What it is at, also while every thread for calls is taken."""
        calls = list(self._calls.values())
        if not calls:
            return Doing()
        since, method = min(calls)
        return Doing(len(calls), method, time.monotonic() - since)

    @ray.method(concurrency_group="clock")
    def clock(self) -> EngineClock:
        """Starts the engine if need be. Start-up begins when the actor is asked for; engines that died count in."""
        if self._restarts < 0:
            return self._before
        return add_clocks(self._before, self._engine().clock())

    def call(self, method: str, *args: Any, alone: bool = False, **options: Any) -> Any:
        """Calls one of the engine's methods."""
        with self._noted(method), self._place(alone):
            engine = self._engine()
            try:
                return getattr(engine, method)(*args, **options)
            except EngineDied as death:
                with self._building:
                    if self._built is engine:
                        self._before, self._since = add_clocks(self._before, engine.clock()), time.time()
                        engine.close()
                        self._built = None
                        self._restarts -= 1
                if self._restarts < 0:
                    raise _too_often(self._name) from death
                raise
            except LancerError:
                raise
            except Exception as error:  # here it knows its place in the code
                raise CallFailed(f"engine {self._name!r} failed: {unforeseen(error)}") from error

    @contextmanager
    def _noted(self, method: str) -> Iterator[None]:
        number = next(self._numbers)
        self._calls[number] = (time.monotonic(), method)
        try:
            yield
        finally:
            del self._calls[number]

    @contextmanager
    def _place(self, alone: bool) -> Iterator[None]:
        with self._changed:
            if alone:
                self._alone_waiting += 1  # from now on others queue behind it: else a full engine never gets empty
                try:
                    self._changed.wait_for(lambda: not self._running)
                finally:
                    self._alone_waiting -= 1
            else:
                self._changed.wait_for(lambda: not self._alone and not self._alone_waiting)
            self._running, self._alone = self._running + 1, alone
        try:
            yield
        finally:
            with self._changed:
                self._running, self._alone = self._running - 1, False
                self._changed.notify_all()


def _too_often(name: str) -> EngineError:
    return EngineError(f"engine {name!r} died more often than limits.engine_restarts")


NO_TIME: Final = EngineClock(startup_s=0.0, busy_s=0.0, idle_s=0.0, calls=0, tokens=0)


def age(clock: EngineClock) -> float:
    """Seconds since it was asked for."""
    return clock.startup_s + clock.busy_s + clock.idle_s


def add_clocks(one: EngineClock, other: EngineClock) -> EngineClock:
    """Both together."""
    return EngineClock(
        startup_s=one.startup_s + other.startup_s,
        busy_s=one.busy_s + other.busy_s,
        idle_s=one.idle_s + other.idle_s,
        calls=one.calls + other.calls,
        tokens=one.tokens + other.tokens,
        cached_tokens=one.cached_tokens + other.cached_tokens,
        output_tokens=one.output_tokens + other.output_tokens,
    )


class EnginePool:
    """The replicas of one engine, started together. Cheap to send to workers: it holds actor handles only."""

    def __init__(
        self, name: str, config: EngineConfig, source: DocumentSource, storage: Storage, *, restarts: int
    ) -> None:
        self.name, self.config = name, config
        # concurrency groups cannot be given as options
        remote: Any = ray.remote  # its types do not know concurrency groups
        actor = remote(concurrency_groups=dict(GROUPS))(EngineActor).options(
            num_cpus=config.num_cpus,
            num_gpus=getattr(config, "num_gpus", 0),
            max_concurrency=CALLERS,
            max_restarts=restarts,
            max_task_retries=0,  # a call that may have killed it must not go again by itself
        )
        asked = time.time()
        self._actors: list[Any] = [
            actor.remote(config, source, storage, asked, name=name, restarts=restarts) for _ in range(config.replicas)
        ]

    def wait_until_started(self, each_second: Sequence[Callable[[], None]] = ()) -> None:
        """Raises what kept an engine from starting, or what a check raises while it starts."""
        starting = {actor.clock.remote(): actor for actor in self._actors}
        while starting:
            ready, _ = ray.wait(list(starting), num_returns=1, timeout=1.0)
            self.call([(starting.pop(ref), ref) for ref in ready])
            for check in each_second:
                check()

    def clocks(self, timeout: float | None = None) -> list[EngineClock]:
        """Of each replica; ray.exceptions.GetTimeoutError when they are not at hand in time."""
        clocks: list[EngineClock] = ray.get([actor.clock.remote() for actor in self._actors], timeout=timeout)
        return clocks

    def doing(self, timeout: float) -> list[Doing | None]:
        """What each replica is at; None for one that does not answer in time."""
        asked = [actor.doing.remote() for actor in self._actors]
        ray.wait(asked, num_returns=len(asked), timeout=timeout)
        return [_at_hand(ref) for ref in asked]

    def kill(self) -> None:
        """Ends the actors and their engines."""
        for actor in self._actors:
            ray.kill(actor)

    def replica(self, key: str) -> Any:
        """The actor that serves a key: always the same one."""
        if len(self._actors) == 1:
            return self._actors[0]
        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
        return self._actors[number % len(self._actors)]

    def call(self, calls: Sequence[tuple[Any, ray.ObjectRef[Any]]]) -> list[Any]:
        """Waits for all of (actor, its call). EngineDied: an actor died under one and is back; CallFailed: its engine
        failed at it; EngineError: it stays dead, or its engine cannot go on. `answered` then holds the results of the
        others, by number."""
        results: dict[int, Any] = {}
        failed: list[Exception] = []
        for number, (actor, ref) in enumerate(calls):
            try:
                results[number] = ray.get(ref)
            except ray.exceptions.RayTaskError as error:
                failed.append(error.cause if isinstance(error.cause, LancerError) else error)
            except ray.exceptions.RayActorError as error:
                failed.append(self._after_death(actor, error))
            except ray.exceptions.RayError as error:
                failed.append(EngineError(f"engine {self.name!r} did not answer: {str(error).splitlines()[0]}"))
        if not failed:
            return list(results.values())
        worst = max(failed, key=lambda error: not isinstance(error, EngineDied | CallFailed))  # which can be mended
        if isinstance(worst, EngineError):
            worst.answered = results
        raise worst

    def _after_death(self, actor: Any, death: ray.exceptions.RayActorError) -> EngineError:
        """What to raise: the actor is back, or it is not."""
        try:
            self._wait_until_back(actor)
        except EngineError as error:
            return error
        died = EngineDied(f"engine {self.name!r} died: {str(death).splitlines()[0]}")
        died.__cause__ = death
        return died

    def _wait_until_back(self, actor: Any) -> None:
        deadline = time.monotonic() + BACK_S
        while True:
            try:
                ray.get(actor.ping.remote())
            except ray.exceptions.ActorUnavailableError as error:
                if time.monotonic() > deadline:
                    raise EngineError(f"engine {self.name!r} died and found no place to start again") from error
                time.sleep(1.0)
            except ray.exceptions.RayActorError as error:
                raise _too_often(self.name) from error
            else:
                return


def _at_hand(ref: ray.ObjectRef[Any]) -> Doing | None:
    try:
        doing: Doing = ray.get(ref, timeout=0)
    except (ray.exceptions.RayError, TimeoutError):
        return None
    return doing


class PooledText:
    """TextEngine over a pool."""

    def __init__(self, pool: EnginePool, *, alone: bool = False) -> None:
        self._pool, self._alone = pool, alone

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        """See `lancer.engines.protocols.TextEngine`."""
        by_actor: dict[Any, list[int]] = {}
        for i, prompt in enumerate(prompts):
            key = affinity(prompt) if self._pool.config.replicas > 1 else ""
            by_actor.setdefault(self._pool.replica(key), []).append(i)
        groups = list(by_actor.values())
        calls = [
            (
                actor,
                actor.call.remote(
                    "generate", [prompts[i] for i in group], sampling, priority=priority, alone=self._alone
                ),
            )
            for actor, group in by_actor.items()
        ]
        try:
            outputs = _by_prompt(groups, dict(enumerate(self._pool.call(calls))))
        except EngineError as error:
            error.answered = _by_prompt(groups, error.answered)
            raise
        return [outputs[i] for i in range(len(prompts))]


def _by_prompt(groups: Sequence[Sequence[int]], results: Mapping[int, Sequence[Generation]]) -> dict[int, Generation]:
    """Number of a group → its results as number of a prompt → its own."""
    return {i: g for number, of_group in results.items() for i, g in zip(groups[number], of_group, strict=True)}


def affinity(prompt: Sequence[Message]) -> str:
    """What the prompts of one (request, document) have in common in every layout; the whole of any other prompt.

    Of a prompt from a file without our marks: the part that it says it shares.
    """
    content = prompt[-1]["content"]
    blocks = [_between(content, f"<{name}>", f"</{name}>") for name in ("request", "document")]
    return "\0".join(blocks) if blocks[1] else content[: prompt[-1].get("shared") or None]


def _between(text: str, start: str, end: str) -> str:
    at = text.find(start)
    return text[at : text.find(end, at)] if at >= 0 else ""


class PooledScorer:
    """PairScorer over a pool."""

    def __init__(self, pool: EnginePool, *, alone: bool = False) -> None:
        self._pool, self._alone = pool, alone

    def score(self, blocks: Sequence[Block]) -> list[ScoredBlock]:
        """See `lancer.engines.protocols.PairScorer`."""
        key = "\n".join(q for block in blocks for q in block.sub_questions)
        actor = self._pool.replica(key)
        call = actor.call.remote("score", list(blocks), alone=self._alone)
        scored: list[ScoredBlock] = self._pool.call([(actor, call)])[0]
        return scored


class PooledSearch:
    """SearchEngine, and Documents where the index holds the texts, over a pool."""

    def __init__(self, pool: EnginePool, *, alone: bool = False) -> None:
        self._pool, self._alone = pool, alone

    def search(self, queries: Sequence[str], depth: int) -> list[list[Hit]]:
        """See `lancer.engines.protocols.SearchEngine`."""
        actor = self._pool.replica("\n".join(queries))
        call = actor.call.remote("search", list(queries), depth, alone=self._alone)
        hits: list[list[Hit]] = self._pool.call([(actor, call)])[0]
        return hits

    def texts(self, doc_ids: Sequence[str]) -> list[str | None]:
        """See `lancer.engines.protocols.Documents`."""
        actor = self._pool.replica("\n".join(doc_ids[:1]))
        texts: list[str | None] = self._pool.call([(actor, actor.call.remote("texts", list(doc_ids)))])[0]
        return texts


class PooledEngines:
    """Every engine of a run by its name: what a stage gets on a worker."""

    def __init__(
        self, pools: dict[str, EnginePool], source: DocumentSource, storage: Storage, *, alone: bool = False
    ) -> None:
        self._pools, self._source, self._storage, self._alone = pools, source, storage, alone

    def alone(self) -> PooledEngines:
        """The same engines, for calls that nothing else may run beside."""
        return PooledEngines(self._pools, self._source, self._storage, alone=True)

    def text(self, name: str) -> PooledText:
        """The text engine of that name."""
        return PooledText(self._pool(name), alone=self._alone)

    def scorer(self, name: str) -> PooledScorer:
        """The scorer of that name."""
        return PooledScorer(self._pool(name), alone=self._alone)

    def search(self, name: str) -> PooledSearch:
        """The search engine of that name."""
        return PooledSearch(self._pool(name), alone=self._alone)

    def context(self, name: str) -> int | None:
        """See `lancer.stages.base.Engines`."""
        return context_of(self._pool(name).config)

    def tokens(self, name: str) -> ChatTokens | None:
        """The tokenizer of that engine's model, in this process: loaded at the first call, kept."""
        known = model_tokens(self._pool(name).config)
        return None if known is None else known.chat

    def _pool(self, name: str) -> EnginePool:
        if name not in self._pools:
            raise EngineNotStarted(f"engine {name!r} is not running")
        return self._pools[name]

    def documents(self) -> Documents:
        """This machine's document store, opened once per process, or the index."""
        if self._source.kind == "index":
            return self.search(self._source.location)
        if self._source.digest not in _OPEN:
            _OPEN[self._source.digest] = self._source.open(self._storage)
        return _OPEN[self._source.digest]


_OPEN: dict[str, Documents] = {}  # per worker process: a store is a file handle, opening one per shard would be waste
