"""Which replica a prompt goes to, and who runs beside whom in one; what actors do in a run is in test_run."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import ray

from lancer.engines.protocols import EngineClock, Sampling
from lancer.engines.sources import DocumentSource
from lancer.engines.synthetic import SyntheticConfig
from lancer.errors import CallFailed, EngineDied, EngineError
from lancer.pipeline.distributed import engine_pool
from lancer.pipeline.distributed.engine_pool import Doing, EngineActor, EnginePool, affinity
from lancer.prompts import decompose, judge
from lancer.prompts.template import parse_template
from lancer.storage import Storage


@pytest.mark.parametrize("layout", ["shared-prefix", "published"])
def test_the_prompts_of_a_document_go_to_one_replica_and_those_of_others_do_not(layout: str) -> None:
    def key(request: str, document: str, question: str) -> str:
        rendered = judge.render(request=request, document=document, sub_question=question, layout=judge.LAYOUTS[layout])
        return affinity(rendered)

    assert key("r", "one", "a?") == key("r", "one", "b?")
    assert key("r", "one", "a?") != key("r", "two", "a?")
    if layout == "shared-prefix":  # the published layout shares nothing of a request
        assert key("r", "one", "a?") != key("s", "one", "a?")


def test_other_prompts_are_spread_by_what_they_say() -> None:
    assert affinity(decompose.render(text="a", n=2)) != affinity(decompose.render(text="b", n=2))


def test_prompts_from_a_file_without_our_marks_go_by_what_they_share() -> None:
    layout = judge.layout_of(
        "shared-prefix", parse_template("{rubric}\nText: {document}\n\nAsked: {sub_question}\nRating:")
    )
    one, other, far = (
        affinity(judge.render(request=None, document=d, sub_question=q, layout=layout))
        for d, q in (("one", "a?"), ("one", "b?"), ("two", "a?"))
    )
    assert one == other != far


def actor_of(engine: object, monkeypatch: pytest.MonkeyPatch, restarts: int = 0) -> Any:
    """An `EngineActor`, in this process, that builds `engine` whenever it builds one; Ray's types call no method."""
    monkeypatch.setattr(engine_pool, "build_engine", lambda *config: engine)
    source = DocumentSource("corpus", "x", "y")
    return EngineActor(SyntheticConfig(), source, Storage(), time.time(), name="llm", restarts=restarts)


class Engine:
    """Notes how many calls run at once."""

    def __init__(self) -> None:
        self.running = 0
        self.beside: dict[str, int] = {}  # the most calls that ran while one of that kind did
        self._lock = threading.Lock()

    def work(self, kind: str) -> None:
        with self._lock:
            self.running += 1
            self.beside[kind] = max(self.beside.get(kind, 0), self.running)
        time.sleep(0.03)
        with self._lock:
            self.running -= 1


def test_a_call_that_must_be_alone_gets_its_turn_in_a_full_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    actor = actor_of(engine, monkeypatch)
    end, served = threading.Event(), threading.Event()

    def shared() -> None:
        while not end.is_set():
            actor.call("work", "shared")

    def alone() -> None:
        actor.call("work", "alone", alone=True)
        served.set()

    threads = [threading.Thread(target=shared) for _ in range(3)]
    for thread in threads:
        thread.start()
        time.sleep(0.01)  # so that one of them is always running
    threads.append(threading.Thread(target=alone))
    threads[-1].start()
    in_time = served.wait(5)
    end.set()
    for thread in threads:
        thread.join()
    assert in_time
    assert engine.beside["shared"] > 1
    assert engine.beside["alone"] == 1


class Mortal:
    """Loads well, and dies at every call."""

    loads = 0

    def clock(self) -> EngineClock:
        return EngineClock(startup_s=1.0, busy_s=1.0, idle_s=0.0, calls=0, tokens=0)

    def close(self) -> None:
        self.loads += 1

    def work(self) -> None:
        raise EngineDied("no first step")


def test_an_engine_that_dies_again_and_again_inside_its_process_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Mortal()
    actor = actor_of(engine, monkeypatch, restarts=2)
    for _ in range(2):
        with pytest.raises(EngineDied):
            actor.call("work")
    for _ in range(2):
        with pytest.raises(EngineError, match=r"engine 'llm' died more often than limits\.engine_restarts") as given_up:
            actor.call("work", alone=True)
        assert not isinstance(given_up.value, EngineDied), "no row is to blame"
    assert engine.loads == 3, "the first one and two restarts"
    assert actor.clock().busy_s == 3.0, "what it took is still told, and no engine is built for that"


def test_what_nobody_foresaw_in_an_engine_is_a_failed_call_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Mortal):
        def work(self) -> None:
            raise RuntimeError("a slip")

    actor = actor_of(Broken(), monkeypatch)
    with pytest.raises(CallFailed, match=r"engine 'llm' failed: RuntimeError: a slip \(lancer/.*engine_pool\.py:\d+"):
        actor.call("work")


def test_an_actor_says_how_many_calls_it_has_and_since_when(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    actor = actor_of(engine, monkeypatch)
    seen: list[Doing] = []
    monkeypatch.setattr(engine, "work", lambda kind: seen.append(actor.doing()))
    actor.call("work", "shared")
    assert [(d.calls, d.oldest) for d in seen] == [(1, "work")]
    assert 0 <= seen[0].seconds < 5
    assert str(Doing(2, "score", 71.4)) == "2 calls, the oldest (score) for 71 s"
    assert (actor.doing(), str(actor.doing())) == (Doing(), "no call under way")


@pytest.mark.ray
@pytest.mark.usefixtures("session_ray")
def test_signs_of_life_do_not_wait_behind_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_pool, "CALLERS", 1)
    source = DocumentSource("corpus", "x", "y")
    pool = EnginePool("llm", SyntheticConfig(latency_s=30), source, Storage(), restarts=0)
    try:
        pool.wait_until_started()
        actor = pool.replica("")
        prompts, sampling = [[{"role": "user", "content": "x"}]], Sampling(max_tokens=4)
        for _ in range(3):
            actor.call.remote("generate", prompts, sampling)
        deadline = time.monotonic() + 10
        while pool.doing(5.0) == [Doing()]:
            assert time.monotonic() < deadline
        assert [d.oldest if d else d for d in pool.doing(5.0)] == ["generate"]
        assert len(pool.clocks(timeout=5.0)) == 1
        ray.get(actor.ping.remote(), timeout=5.0)
    finally:
        pool.kill()
