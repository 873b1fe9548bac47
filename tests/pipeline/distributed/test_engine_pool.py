"""Which replica a prompt goes to, and who runs beside whom in one; what actors do in a run is in test_run."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import ray

from lancer.engines.protocols import Sampling
from lancer.engines.sources import DocumentSource
from lancer.engines.synthetic import SyntheticConfig
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
    monkeypatch.setattr(engine_pool, "build_engine", lambda *config: engine)
    actor = EngineActor(SyntheticConfig(), DocumentSource("corpus", "x", "y"), Storage(), time.time())
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


def test_an_actor_says_how_many_calls_it_has_and_since_when(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    monkeypatch.setattr(engine_pool, "build_engine", lambda *config: engine)
    actor: Any = EngineActor(SyntheticConfig(), DocumentSource("corpus", "x", "y"), Storage(), time.time())
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
