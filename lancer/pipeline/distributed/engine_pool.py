"""Engines as pools of Ray actors: one pool per distinct engine config, shared by every stage and shard that uses it.

An actor builds its engine at the first call and serves many callers at once (threads), so that the engine is fed from
several shards together. Text prompts are routed by a hash of their shared beginning, so that the prompts of one
(request, document) meet the same prefix cache. A scorer's or searcher's call goes to one replica whole: what is packed
together then does not depend on how many replicas there are.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Any

import ray

from lancer.engines.protocols import Block, Documents, EngineClock, Generation, Hit, Message, Sampling, ScoredBlock
from lancer.engines.sources import DocumentSource
from lancer.engines.table import EngineConfig, build_engine
from lancer.errors import EngineError
from lancer.storage import Storage

CALLERS = 64  # threads of an actor: more than shards in flight, so that no call waits outside the engine
RESTARTS = 2


class EngineActor:
    """Runs one engine; the methods are those of `lancer.engines.protocols`."""

    def __init__(self, config: EngineConfig, source: DocumentSource, storage: Storage) -> None:
        self._config, self._source, self._storage = config, source, storage
        self._lock = threading.Lock()
        self._built: Any = None

    def _engine(self) -> Any:
        with self._lock:
            if self._built is None:
                self._built = build_engine(self._config, self._source, self._storage)
            return self._built

    def clock(self) -> EngineClock:
        """Starts the engine if need be."""
        clock: EngineClock = self._engine().clock()
        return clock

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        """Calls one of the engine's methods."""
        return getattr(self._engine(), method)(*args, **options)


class EnginePool:
    """The replicas of one engine, started together. Cheap to send to workers: it holds actor handles only."""

    def __init__(self, name: str, config: EngineConfig, source: DocumentSource, storage: Storage) -> None:
        self.name, self.config = name, config
        actor = ray.remote(EngineActor).options(
            num_cpus=config.num_cpus,
            num_gpus=getattr(config, "num_gpus", 0),
            max_concurrency=CALLERS,
            max_restarts=RESTARTS,
            max_task_retries=RESTARTS,
        )
        self._actors: list[Any] = [actor.remote(config, source, storage) for _ in range(config.replicas)]

    def starting(self) -> list[ray.ObjectRef[Any]]:
        """One reference per replica, ready when its engine is."""
        return [actor.clock.remote() for actor in self._actors]

    def clocks(self, timeout: float | None = None) -> list[EngineClock]:
        """Of each replica; ray.exceptions.GetTimeoutError when they are not at hand in time."""
        clocks: list[EngineClock] = ray.get(self.starting(), timeout=timeout)
        return clocks

    def kill(self) -> None:
        """Ends the actors and their engines."""
        for actor in self._actors:
            ray.kill(actor)

    def replica(self, key: str) -> Any:
        """The actor that serves a key: always the same one."""
        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
        return self._actors[number % len(self._actors)]

    def get(self, refs: Sequence[ray.ObjectRef[Any]]) -> list[Any]:
        """Waits for calls; EngineError when the actor died more often than it is restarted."""
        try:
            results: list[Any] = ray.get(list(refs))
        except ray.exceptions.RayActorError as error:
            raise EngineError(f"engine {self.name!r} died and did not come back: {error}") from error
        return results


class PooledText:
    """TextEngine over a pool."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        """See `lancer.engines.protocols.TextEngine`."""
        groups: dict[Any, list[int]] = {}
        for i, prompt in enumerate(prompts):
            groups.setdefault(self._pool.replica(_shared_beginning(prompt)), []).append(i)
        refs = [
            actor.call.remote("generate", [prompts[i] for i in group], sampling, priority=priority)
            for actor, group in groups.items()
        ]
        outputs: dict[int, Generation] = {}
        for group, generations in zip(groups.values(), self._pool.get(refs), strict=True):
            outputs.update(zip(group, generations, strict=True))
        return [outputs[i] for i in range(len(prompts))]


def _shared_beginning(prompt: Sequence[Message]) -> str:
    """What the prompts of one document have in common: the last turn up to its last block."""
    return prompt[-1]["content"].rpartition("<question>")[0] or prompt[-1]["content"]


class PooledScorer:
    """PairScorer over a pool."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool

    def score(self, blocks: Sequence[Block]) -> list[ScoredBlock]:
        """See `lancer.engines.protocols.PairScorer`."""
        key = "\n".join(q for block in blocks for q in block.sub_questions)
        scored: list[ScoredBlock] = self._pool.get([self._pool.replica(key).call.remote("score", list(blocks))])[0]
        return scored


class PooledSearch:
    """SearchEngine, and Documents where the index holds the texts, over a pool."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool

    def search(self, queries: Sequence[str], depth: int) -> list[list[Hit]]:
        """See `lancer.engines.protocols.SearchEngine`."""
        actor = self._pool.replica("\n".join(queries))
        hits: list[list[Hit]] = self._pool.get([actor.call.remote("search", list(queries), depth)])[0]
        return hits

    def texts(self, doc_ids: Sequence[str]) -> list[str | None]:
        """See `lancer.engines.protocols.Documents`."""
        actor = self._pool.replica("\n".join(doc_ids[:1]))
        texts: list[str | None] = self._pool.get([actor.call.remote("texts", list(doc_ids))])[0]
        return texts


class PooledEngines:
    """Every engine of a run by its name: what a stage gets on a worker."""

    def __init__(self, pools: dict[str, EnginePool], source: DocumentSource, storage: Storage) -> None:
        self._pools, self._source, self._storage = pools, source, storage

    def text(self, name: str) -> PooledText:
        """The text engine of that name."""
        return PooledText(self._pools[name])

    def scorer(self, name: str) -> PooledScorer:
        """The scorer of that name."""
        return PooledScorer(self._pools[name])

    def search(self, name: str) -> PooledSearch:
        """The search engine of that name."""
        return PooledSearch(self._pools[name])

    def documents(self) -> Documents:
        """This machine's document store, opened once per process, or the index."""
        if self._source.kind == "index":
            return self.search(self._source.location)
        if self._source.digest not in _OPEN:
            _OPEN[self._source.digest] = self._source.open(self._storage)
        return _OPEN[self._source.digest]


_OPEN: dict[str, Documents] = {}  # per worker process: a store is a file handle, opening one per shard would be waste
