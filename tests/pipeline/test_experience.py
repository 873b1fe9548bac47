"""What a run folder tells about the next run."""

from __future__ import annotations

from pathlib import Path

import pytest

from lancer.engines.protocols import EngineClock
from lancer.errors import InputError
from lancer.pipeline.experience import Experience, Habit, read_experience
from lancer.pipeline.forecast import Rates
from lancer.stages.records import LedgerRecord
from tests.pipeline.folders import RunMaker, ago

# Two replicas: 200 s busy each for 1,000 tokens, 300 of them cached.
CLOCK = EngineClock(startup_s=20, busy_s=200, idle_s=80, calls=10, tokens=1000, cached_tokens=300, output_tokens=100)


def finished(folder: Path, *overrides: str) -> RunMaker:
    run = RunMaker(folder, *overrides)
    run.begin("finished")
    for shard in run.plan.shards:
        run.shard(shard)
    return run


def test_rates_are_of_one_replica_and_without_cached_tokens(tmp_path: Path) -> None:
    run = finished(tmp_path)
    run.session(CLOCK, CLOCK, status="finished", started=ago(400), heartbeat=ago(0), engines_s=350.0)
    found = read_experience(run.store.root, run.plan).rates
    assert found.engines["llm"].unit == "tokens"
    assert found.engines["llm"].busy_s == pytest.approx(400 / 1400)
    assert found.engines["llm"].startup_s == pytest.approx(20)
    assert found.stretch == pytest.approx((350 - 20) / 200)


def test_without_tokens_a_rate_is_by_calls_and_a_run_that_did_nothing_has_none(tmp_path: Path) -> None:
    run = finished(tmp_path)
    with pytest.raises(InputError, match="its engines have done nothing yet"):
        read_experience(run.store.root, run.plan)
    run.session(EngineClock(startup_s=1, busy_s=30, idle_s=0, calls=60, tokens=0), status="finished")
    rate = read_experience(run.store.root, run.plan).rates.engines["llm"]
    assert (rate.unit, rate.busy_s) == ("calls", 0.5)


def test_another_engine_tells_nothing_and_another_setting_is_told(tmp_path: Path) -> None:
    run = finished(tmp_path)
    run.session(CLOCK, status="finished")
    slower = read_experience(run.store.root, RunMaker(tmp_path, "engines.llm.latency_s=1").plan)
    assert slower.rates.engines.keys() == {"llm"}
    assert any("it differed in latency_s" in note for note in slower.notes)
    http = RunMaker(tmp_path, "engines.llm={kind: http, base_url: 'http://x/v1', model: m}").plan
    other = read_experience(run.store.root, http)
    assert not other.rates.engines
    assert any("had another engine" in note and "kind" in note for note in other.notes)


def test_habits_are_of_stages_with_the_same_settings(tmp_path: Path) -> None:
    run = finished(tmp_path)
    run.session(CLOCK, status="finished")
    record = run.store.read_json()
    assert record is not None
    for stage, planned in zip(record["stages"], run.plan.stages, strict=True):
        stage["identity"] = planned.identity
    run.store.write_json(record)
    same = read_experience(run.store.root, run.plan)
    assert same.habits["judge"].calls == 1
    assert 0 < same.habits["judge"].output_tokens <= 1
    hotter = read_experience(run.store.root, RunMaker(tmp_path, "judge.temperature=1").plan)
    assert "judge" not in hotter.habits


def test_what_follows_a_first_attempt_is_added_in_proportion() -> None:
    habit = Habit(calls=1.5, prompt_tokens=1.6, cached_again=0.5, output_tokens=40.0)
    known = Experience(Rates("x", {}, 1.0), {"decompose": habit}, (), ())
    first = LedgerRecord(
        query_id="a", stage="decompose", engine="llm", calls=2, prompt_tokens=200, cached_tokens=50, output_tokens=9
    )
    again = LedgerRecord(query_id="a", stage="decompose", engine="llm", attempt=2, calls=1, prompt_tokens=100)
    other = LedgerRecord(query_id="a", stage="judge", engine="llm", calls=7)
    changed, same = known.records([first, again, other])
    assert (changed.calls, changed.prompt_tokens, changed.cached_tokens, changed.output_tokens) == (3, 320, 150, 120)
    assert same == other
