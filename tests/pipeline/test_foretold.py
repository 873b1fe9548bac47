"""A forecast in its run folder, and beside what came of the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lancer.engines.protocols import EngineClock
from lancer.pipeline.estimating import budget_lines, estimate_plan, over_budget
from lancer.pipeline.estimating_tables import comparison_table, render_forecast
from lancer.pipeline.folder import open_run
from lancer.pipeline.forecast import COUNTS, Forecast, Range, StageForecast
from lancer.pipeline.foretold import compare_kept, keep, kept
from lancer.pipeline.resume import input_record
from tests.pipeline.folders import RunMaker, ago

CLOCK = EngineClock(startup_s=10, busy_s=20, idle_s=6, calls=1, tokens=100, output_tokens=10)


def begin(run: RunMaker, status: str = "finished") -> None:
    """run.json as the runner leaves it."""
    run.begin(status)
    record = run.store.read_json()
    assert record is not None
    run.store.write_json(record | {"inputs": input_record(run.plan)})


def foretold(run: RunMaker) -> Forecast:
    found = estimate_plan(run.plan, run.storage, sample=4)
    keep(found, run.store)
    return found


def test_a_finished_run_beside_its_forecast(tmp_path: Path) -> None:
    run = RunMaker(tmp_path, "prices.llm={usd_per_device_hour: 100}")
    assert kept(run.store) is None
    found = foretold(run)
    assert kept(run.store) == found
    begin(run)
    for shard in run.plan.shards:
        run.shard(shard)
    run.session(CLOCK, status="finished", started=ago(72), heartbeat=ago(0))
    judge, total = compare_kept(open_run(run.store.root))
    assert judge.stage == "judge"
    assert judge.predicted["calls"] == judge.actual["calls"] == run.total_calls
    assert judge.predicted["prompt_tokens"] == judge.actual["prompt_tokens"]
    assert (judge.predicted["usd"], judge.predicted["device_hours"]) == (None, None), "no rates were given"
    assert judge.actual["device_hours"] == pytest.approx(0.01)
    assert total.actual["hours"] == pytest.approx(0.02, rel=0.01)

    lines = shown(comparison_table([judge, total]))
    assert any(f"{run.total_calls:,} | {run.total_calls:,}" in line and "- | 0.010" in line for line in lines)


def test_no_comparison_before_the_end_or_with_the_forecast_of_another_run(tmp_path: Path) -> None:
    run = RunMaker(tmp_path)
    foretold(run)
    begin(run, "running")
    assert compare_kept(open_run(run.store.root)) == []
    begin(run)
    assert compare_kept(open_run(run.store.root)) != []
    begin(RunMaker(tmp_path, "judge.temperature=0.5"))
    assert compare_kept(open_run(run.store.root)) == []
    run.storage.write(run.store.uri("estimate.json"), b'{"plan": "x"}')
    assert kept(run.store) is None


def shown(table: object) -> list[str]:
    console = Console(width=200, record=True, markup=False)
    with console.capture() as captured:
        console.print(table)
    return [" ".join(line.split()) for line in captured.get().splitlines()]


def forecast_of(usd: Range | None, hours: Range | None) -> Forecast:
    counts = dict.fromkeys(COUNTS, Range(10.0, 9.0, 11.0))
    stage = StageForecast("judge", "llm", counts, None, usd)
    return Forecast("p", 100, 10, [stage], StageForecast("total", "", counts, None, usd), hours, ["bm25"], ["an x"])


@pytest.mark.parametrize(
    ("limit", "said", "over"), [(8, "not enough", 1), (10.5, "may not be enough", 0), (12, "enough", 0)]
)
def test_a_forecast_against_the_budget(tmp_path: Path, limit: float, said: str, over: int) -> None:
    run = RunMaker(tmp_path, "prices.llm={usd_per_device_hour: 1}", f"limits.usd={limit}", "limits.hours=5")
    found = replace(forecast_of(Range(10.0, 9.0, 11.0), None), without_price=[])
    assert budget_lines(run.config.limits, found) == [
        f"limits.usd {limit:g}: {said}",
        "limits.hours 5: what the run takes of it is not known",
    ]
    in_part = replace(found, without_price=["bm25"])
    assert budget_lines(run.config.limits, in_part)[0].endswith("not enough" if over else "may not be enough")
    assert len(over_budget(run.config.limits, found)) == over
    assert over_budget(run.config.limits, forecast_of(None, Range(6.0))) == ["6.00 hours of limits.hours 5"]


def test_the_table_for_a_person(tmp_path: Path) -> None:
    run = RunMaker(tmp_path)
    lines = shown(render_forecast(forecast_of(Range(10.0, 9.0, 11.0), None), run.config.limits))
    assert lines[0] == "forecast for 100 queries, from 10 of them"
    assert "judge llm 10 ±10.0% 10 ±10.0% 10 ±10.0% 100% 10 ±10.0% not known 10.00 ±10.0%" in lines
    assert "duration: not known" in lines
    assert "not in USD, or not all of it: bm25" in lines
    assert "an x" in lines
