"""What a run says of itself: hangs, starts that take long, passes that are repeated, engines that are held."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest

from lancer.engines.protocols import EngineClock
from lancer.errors import EngineError
from lancer.pipeline.budget import Budget
from lancer.pipeline.distributed.engine_pool import NO_TIME, Doing, EnginePool
from lancer.pipeline.distributed.watch import Watch, together
from lancer.pipeline.execute import StageReport
from lancer.pipeline.resume import find_work
from lancer.pipeline.summary import RunResult
from tests.pipeline.folders import RunMaker


@dataclass(eq=False)
class Pool:
    """Engines that say what they are told to."""

    name: str = "llm"
    replicas: int = 1
    clock: EngineClock = NO_TIME
    at: list[Doing | None] = field(default_factory=lambda: [Doing()])

    @property
    def config(self) -> Pool:
        return self

    def clocks(self, timeout: float | None = None) -> list[EngineClock]:
        return [self.clock] * self.replicas

    def doing(self, timeout: float) -> list[Doing | None]:
        return self.at


def pools(*given: Pool) -> dict[str, EnginePool]:
    return {pool.name: cast(EnginePool, pool) for pool in given}


@dataclass
class Watched:
    run: RunMaker
    result: RunResult
    watch: Watch

    def begin(self) -> None:
        self.watch.begin(find_work(self.run.plan, self.run.store))


def watched(folder: Path, *overrides: str) -> Watched:
    run = RunMaker(folder, "shard_queries=1", *overrides)
    result = RunResult(run.store.root, run.plan.inputs.table.num_rows)
    found = Watched(run, result, Watch(run.plan, run.store, result, Budget(run.config, run.plan.engines, [])))
    found.begin()
    return found


def test_a_start_longer_than_a_stall_is_none(tmp_path: Path) -> None:
    watch = watched(tmp_path, "limits.stall_s=0.3").watch
    pool = Pool(at=[Doing(3, "generate", 1805.2)])
    watch.starting(pools(pool), time.monotonic())
    watch.report()  # as the heartbeat does
    time.sleep(0.4)
    with watch.watching(pools(pool)):
        watch.report()
        watch.check_stall()
        time.sleep(0.2)
        pool.clock = replace(NO_TIME, calls=1)
        watch.report()
        time.sleep(0.2)
        watch.check_stall()
        time.sleep(0.2)
        with pytest.raises(EngineError, match=r"llm: 3 calls, the oldest \(generate\) for 1805 s"):
            watch.check_stall()


def test_a_start_has_a_limit_of_its_own(tmp_path: Path) -> None:
    watch = watched(tmp_path, "limits.startup_s=60").watch
    watch.starting(pools(Pool()), time.monotonic() - 59)
    watch.check_start("llm")
    watch.starting(pools(Pool()), time.monotonic() - 61)
    with pytest.raises(EngineError, match=r"engine 'llm' has not started in 61 s \(limits\.startup_s\); the run can"):
        watch.check_start("llm")


def test_a_stall_says_what_each_replica_and_each_shard_in_work_is_at(tmp_path: Path) -> None:
    found = watched(tmp_path, "limits.stall_s=0.1", "limits.attempts=3")
    run, watch = found.run, found.watch
    first, second, third, _ = run.plan.shards
    run.shard(second, stages=2)
    for shard in (second, third):
        run.storage.write(run.store.uri("attempts", f"{shard.id}.json"), b"{}")
    pool = Pool(replicas=3, at=[Doing(), Doing(1, "score", 12), None])
    with watch.watching(pools(pool)):
        watch.report()
        time.sleep(0.2)
        with pytest.raises(EngineError) as caught:
            watch.check_stall()
    doing = str(caught.value).split("(limits.stall_s): ")[1].split("; ")
    assert doing == [
        "llm[0]: no call under way",
        "llm[1]: 1 call (score) for 12 s",
        "llm[2]: does not answer",
        f"shard {second.id} in judge",
        f"shard {third.id} in retrieve",
        "the run can be resumed",
    ]
    assert first.id not in " ".join(doing)


def report(stage: str, calls: int, *, reused: bool = False) -> StageReport:
    return StageReport(stage, 1, reused=reused, calls=calls, failures={"error": 1}, seconds=2.0)


def test_a_stage_that_is_done_twice_is_one_result_of_all_work() -> None:
    made, reused = report("judge", 16), report("judge", 16, reused=True)
    assert together(reused, made) == made
    assert together(made, reused) == made
    both = together(made, replace(made, calls=0, reused_calls=16))
    assert (both.queries, both.calls, both.reused_calls, both.seconds) == (1, 16, 16, 4.0)
    assert both.failures == {"error": 1}


def test_shards_that_are_done_again_count_once(tmp_path: Path) -> None:
    found = watched(tmp_path, "limits.failed_queries=1", "limits.failed_cells=1")
    watch, (first, second, *_) = found.watch, found.run.plan.shards
    assert (watch.total, watch.done) == (4, 0)
    for shard in (first, second):
        watch.finished(shard.id, 1, [report("judge", 16)])
    judge = next(s for s in found.result.stages if s.stage == "judge")
    assert (judge.queries, judge.calls, judge.failures) == (2, 32, {"error": 2})

    found.begin()  # nothing is in the folder: all four again
    assert (watch.total, watch.done) == (4, 0)
    watch.finished(first.id, 1, [report("judge", 16, reused=True)])
    watch.finished(second.id, 1, [report("judge", 3)])
    judge = next(s for s in found.result.stages if s.stage == "judge")
    assert (judge.queries, judge.reused_queries, judge.calls, judge.failures) == (2, 0, 35, {"error": 2})
    assert watch.finished_shards == {first.id, second.id}


def test_engines_are_held_for_all_passes(tmp_path: Path) -> None:
    watch = watched(tmp_path).watch
    for since, startup_s in ((100.0, 10.0), (30.0, 28.0)):  # the second start takes longer than all of the first pass
        pool = Pool(clock=replace(NO_TIME, startup_s=startup_s, busy_s=1.0, calls=5))
        watch.starting(pools(pool), time.monotonic() - since)
        with watch.watching(pools(pool)):
            record = watch.report()
    assert record["engines_s"] == pytest.approx(130, abs=1)
    (clock,) = record["result"]["engines"]["llm"]
    assert (clock["startup_s"], clock["busy_s"], clock["calls"]) == (38.0, 2.0, 10)


def test_an_engine_that_only_one_pass_needed_is_held_no_longer(tmp_path: Path) -> None:
    watch = watched(tmp_path, "engines.other={kind: synthetic, seed: 1}").watch
    watch.starting(pools(Pool(), Pool("other")), time.monotonic() - 100)
    with watch.watching(pools(Pool(), Pool("other"))):
        watch.report()
    watch.starting(pools(Pool()), time.monotonic() - 50)
    with watch.watching(pools(Pool())):
        record = watch.report()
    assert record["engines_s"] * 2 == pytest.approx(150 + 100, abs=1), "by two devices"


def test_the_record_says_what_the_engines_are_paid_by(tmp_path: Path) -> None:
    watch = watched(tmp_path, "prices.llm={usd_per_device_hour: 6}").watch
    with watch.watching(pools(Pool())):
        terms = watch.report()["terms"]
    assert (terms["llm"]["devices"], terms["llm"]["price"]["usd_per_device_hour"]) == (1.0, 6.0)
