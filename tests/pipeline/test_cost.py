"""`lancer cost`: sums over ledger and clocks, on folders made here and on one real run."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import lancer
from lancer.cli import main
from lancer.engines.protocols import EngineClock
from lancer.errors import InputError, OutputError
from lancer.pipeline import lease
from lancer.pipeline.cost import Cost, read_cost
from lancer.pipeline.cost_tables import render_cost
from lancer.pipeline.status import StatusReader
from tests.pipeline.folders import JUDGED, RunMaker, ago
from tests.pipeline.small import DOCUMENTS, REQUESTS, small_config

PRICED = "prices.llm={usd_per_device_hour: 6}"
CALLS = len(DOCUMENTS) * sum(len(questions) for _, questions in REQUESTS.values())


def clock(startup_s: float, busy_s: float, idle_s: float, calls: int = 0, tokens: int = 0) -> EngineClock:
    return EngineClock(startup_s=startup_s, busy_s=busy_s, idle_s=idle_s, calls=calls, tokens=tokens)


def finished(folder: Path, *overrides: str) -> RunMaker:
    """A whole run without its sessions."""
    run = RunMaker(folder, *overrides)
    run.begin("finished")
    for shard in run.plan.shards:
        run.shard(shard)
    return run


def lines(cost: Cost) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=220, markup=False, highlight=False).print(render_cost(cost))
    return [" ".join(line.split()) for line in stream.getvalue().splitlines()]


def test_a_run_by_stage_query_and_engine(tmp_path: Path) -> None:
    run = finished(tmp_path, PRICED)
    tokens = run.engine.clock().tokens
    run.session(clock(100, 400, 100, CALLS, tokens), status="finished", started=ago(600), heartbeat=ago(0))
    cost = read_cost(run.store.root)
    assert list(cost.stages) == ["retrieve", "decompose", "judge", "select"]
    judge, total = cost.stages["judge"], cost.total
    assert (judge.queries, judge.calls, judge.pairs, judge.tokens) == (len(REQUESTS), CALLS, CALLS, tokens)
    assert [judge.device_s, total.device_s] == pytest.approx([600, 600])
    assert [judge.money.usd, total.money.usd] == pytest.approx([1, 1])
    assert not total.money.without
    assert cost.stages["select"].money.known == 0.0
    assert cost.per_query["calls"] == {"p50": 16.0, "p95": pytest.approx(22.8), "max": 24.0}
    assert 0.25 < cost.per_query["usd"]["max"] < 0.5
    (engine,) = cost.engines
    assert (engine.shared_by, engine.use.calls, engine.sums.calls) == ("tokens", CALLS, CALLS)
    assert cost.per_1000_queries.money.usd == pytest.approx(250)
    shown = lines(cost)
    assert any(line.startswith(f"judge 4 {CALLS} {CALLS}") and "600.0 1.00" in line for line in shown)
    assert any(line.startswith("per 1,000 queries 18,000 18,000") and "150,000.0 250.00" in line for line in shown)
    assert f"llm 1 x 1 100.0 400.0 100.0 0.1667 1.00 tokens {CALLS} {tokens:,}" in shown
    assert not [line for line in shown if line.startswith("note:")]


def test_clocks_reconcile_with_the_wall_clock_of_all_sessions(tmp_path: Path) -> None:
    run = finished(tmp_path, "engines.llm.replicas=2")
    times = {"started": ago(1000), "heartbeat": ago(0)}
    run.session(clock(10, 900, 80), clock(20, 500, 470), status="interrupted", **times)
    run.session(clock(10, 300, 80), clock(10, 370, 10), status="finished", engines_s=395.0, **times)
    run.session(status="finished", **times)  # all was there: no engine
    cost = read_cost(run.store.root)
    assert [s.wall_s for s in cost.sessions] == pytest.approx([1000] * 3, abs=0.1)
    assert [(s.devices, s.engine_s) for s in cost.sessions] == [(2, 1980), (2, 780), (0, 0)]
    assert [s.held_s for s in cost.sessions][1] == 395, "the driver's own measure of how long engines were held"
    differences = [s.difference for s in cost.sessions]
    assert differences == [pytest.approx(0.01, abs=1e-3), pytest.approx(10 / 790), None]
    assert cost.difference == pytest.approx(30 / 2790, rel=0.01)
    (engine,) = cost.engines
    use = engine.use
    assert (use.replicas, use.startup_s, use.busy_s, use.idle_s) == (2, 50, 2070, 640)
    assert cost.total.device_s == pytest.approx(2760)
    assert cost.as_dict()["reconciliation"]["engine_s"] == 2760
    assert "total 3,000.0 2,790.0 2,760.0 1.1%" in lines(cost)


def test_tokens_that_no_record_has_are_in_the_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session answered everything and was killed; the next one took its answers from the journal."""
    monkeypatch.setattr(lease, "DEAD_S", 0.2)
    run = finished(tmp_path, "prices.llm={usd_per_million_prompt_tokens: 10, usd_per_million_output_tokens: 100}")
    made = run.engine.clock()
    ledger = (made.tokens - made.output_tokens) * 10 + made.output_tokens * 100
    run.session(replace(made, tokens=made.tokens + 3_100_000, output_tokens=made.output_tokens + 100_000))
    run.session(clock(1, 0, 1), status="finished")
    cost = read_cost(run.store.root)
    assert cost.stages["judge"].money.usd == pytest.approx(ledger / 1e6)
    assert cost.stages["(not in the ledger)"].money.usd == pytest.approx(40)
    assert cost.total.money.usd == pytest.approx(40 + ledger / 1e6)
    assert cost.total.money.usd == pytest.approx(StatusReader(run.store.root).read().spent.usd)
    assert cost.engines[0].as_dict()["usd"] == pytest.approx(cost.total.money.usd)
    assert cost.total.money.usd == pytest.approx(sum(s.money.usd for s in cost.stages.values()))
    assert cost.per_query["usd"]["max"] < ledger / 1e6, "of the queries' own calls"
    shown = lines(cost)
    assert any(line.startswith("(not in the ledger) 4 -") and "40.00" in line for line in shown)
    assert any(line.startswith("total 4") and f"{40 + ledger / 1e6:.2f}" in line for line in shown), shown


def test_a_clock_that_is_behind_the_ledger_takes_nothing_away(tmp_path: Path) -> None:
    run = finished(tmp_path, "prices.llm={usd_per_million_prompt_tokens: 10}")
    run.session(clock(1, 2, 3, 1, 100))
    cost = read_cost(run.store.root)
    assert cost.total.money.usd == pytest.approx(cost.stages["judge"].money.usd)
    assert "(not in the ledger)" not in cost.stages


def test_without_a_price_there_is_no_amount(tmp_path: Path) -> None:
    run = finished(tmp_path)
    run.session(clock(1, 2, 3), status="finished")
    cost = read_cost(run.store.root)
    assert cost.total.as_dict()["usd"] is None
    assert "usd" not in cost.per_query
    shown = lines(cost)
    assert any(line.startswith("judge") and "no price" in line for line in shown)
    assert any(line.startswith("total") and "no price" in line for line in shown)
    assert "note: `prices` has nothing for llm" in shown


def test_of_an_unfinished_run_the_parts_count(tmp_path: Path) -> None:
    run = RunMaker(tmp_path, PRICED, "shard_queries=1")
    run.begin()
    run.session(clock(10, 90, 0, 30, 4000), started=ago(100))
    first, second, *_ = run.plan.shards
    run.shard(first)
    run.shard(second, stages=3)
    cost = read_cost(run.store.root)
    n1, n2 = first.table.num_rows, second.table.num_rows
    assert cost.status == "running"
    assert (cost.stages["judge"].queries, cost.stages["select"].queries) == (n1 + n2, n1)
    assert cost.stages["judge"].device_s == pytest.approx(100)
    assert any("llm counted 30 calls and 4,000 tokens, the ledger" in line for line in lines(cost))


def test_an_engine_of_two_names_is_one_pool(tmp_path: Path) -> None:
    again = "engines.other={kind: synthetic}"
    run = finished(tmp_path, again, "prices.other={usd_per_device_hour: 6}")
    both: dict[str, Any] = {name: [asdict(clock(100, 400, 100))] for name in ("llm", "other")}
    run.session(result={"engines": both, "stages": []}, status="finished")
    cost = read_cost(run.store.root)
    assert [e.use.name for e in cost.engines] == ["llm"]
    assert [cost.total.device_s, cost.total.money.usd] == pytest.approx([600, 1])


def test_an_engine_that_no_record_called_is_paid_too(tmp_path: Path) -> None:
    run = finished(tmp_path, PRICED, "engines.idle={kind: synthetic, seed: 1}", "prices.idle={usd_per_device_hour: 1}")
    engines: dict[str, Any] = {"llm": [asdict(clock(100, 400, 100))], "idle": [asdict(clock(0, 0, 3600))]}
    run.session(result={"engines": engines, "stages": []}, status="finished")
    cost = read_cost(run.store.root)
    assert cost.total.money.known == pytest.approx(2.0)
    assert cost.total.device_s == pytest.approx(4200)
    assert [(e.use.name, e.shared_by) for e in cost.engines] == [("llm", "tokens"), ("idle", None)]
    assert cost.stages["(no stage)"].money.usd == pytest.approx(1.0)
    assert cost.per_1000_queries.money.usd == pytest.approx(500)


def test_devices_are_gpus_where_an_engine_has_them(tmp_path: Path) -> None:
    run = finished(tmp_path, "engines.big={kind: vllm, model: m/x, num_gpus: 4}")
    result = {"engines": {"big": [asdict(clock(10, 20, 30))]}, "stages": []}
    run.session(result=result, status="finished", started=ago(60), heartbeat=ago(0))
    cost = read_cost(run.store.root)
    assert cost.sessions[0].devices == 4
    assert cost.sessions[0].engine_s == 240
    assert cost.sessions[0].difference == pytest.approx(0, abs=1e-3)


def test_a_session_is_paid_by_the_terms_of_its_time(tmp_path: Path) -> None:
    """Six dollars an hour then, on four devices; two now, on one. A session without terms counts as now."""
    run = finished(tmp_path, "prices.llm={usd_per_device_hour: 2}")
    then = {"llm": {"devices": 4.0, "price": {"usd_per_device_hour": 6}}}
    for terms in (then, {"llm": {"devices": 1.0, "price": None}}, {}):
        run.session(clock(600, 2400, 600), status="finished", terms=terms, started=ago(3600), heartbeat=ago(0))
    cost = read_cost(run.store.root)
    assert [s.devices for s in cost.sessions] == [4, 1, 1]
    assert [s.difference for s in cost.sessions] == [pytest.approx(0, abs=1e-3)] * 3
    assert cost.total.device_s == pytest.approx((4 + 1 + 1) * 3600)
    assert cost.total.money.known == pytest.approx(4 * 6 + 2 + 2)
    assert StatusReader(run.store.root).read().spent.usd == pytest.approx(28)


def test_an_engine_that_has_another_name_now_is_paid_as_it_was(tmp_path: Path) -> None:
    run = finished(tmp_path, PRICED)
    was = {"old": {"devices": 8.0, "price": {"usd_per_device_hour": 1, "usd_per_million_output_tokens": 10}}}
    clocks = replace(clock(600, 2400, 600, 10, 200_000), output_tokens=100_000)
    run.session(result={"engines": {"old": [asdict(clocks)]}, "stages": []}, terms=was, status="finished")
    (spend,) = (s for s in StatusReader(run.store.root).read().spend if s.engine == "old")
    assert spend.device_hours == pytest.approx(8)
    assert spend.money.known == pytest.approx(8 + 1)
    assert read_cost(run.store.root).sessions[0].devices == 8


def test_a_record_of_another_version_is_named(tmp_path: Path) -> None:
    run = finished(tmp_path)
    run.session(result={"engines": {"llm": [{"busy_s": 1.0}]}, "stages": []})
    with pytest.raises(OutputError, match="session 1 was written by another version of lancer"):
        read_cost(run.store.root)
    with pytest.raises(InputError, match="is no run folder"):
        read_cost(str(tmp_path))


def test_before_anything_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = RunMaker(tmp_path)
    run.begin()
    assert main(["cost", run.store.root]) == 0
    assert "0 of 4 queries in the ledger" in capsys.readouterr().out
    assert main(["cost", run.store.root, "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["total"]["calls"], found["stages"], found["reconciliation"]["difference"]) == (0, {}, None)


@pytest.mark.ray
@pytest.mark.usefixtures("session_ray")
def test_a_real_run_adds_up(tmp_path: Path) -> None:
    overrides = (*JUDGED, PRICED, "engines.llm.latency_s=0.2")
    config = small_config(tmp_path, *overrides)
    result = lancer.run(config)
    cost = read_cost(config.output)
    (engine,), (session,) = cost.engines, cost.sessions
    clocks = result.engines["llm"]
    assert engine.use.busy_s == pytest.approx(sum(c.busy_s for c in clocks))
    assert (engine.use.calls, engine.use.tokens) == (engine.sums.calls, engine.sums.tokens), "none lost, none twice"
    assert engine.use.calls == CALLS
    assert cost.total.device_s == pytest.approx(session.engine_s), "shares of queries add up to the engines' seconds"
    assert cost.total.device_s == pytest.approx(sum(c.startup_s + c.busy_s + c.idle_s for c in clocks))
    assert cost.total.money.known == pytest.approx(cost.total.device_s / 3600 * 6)
    assert 0 < session.engine_s <= session.held_s * session.devices
    status = StatusReader(config.output).read()
    assert (status.status, status.finished, [s.failed for s in status.stages]) == ("finished", len(REQUESTS), [0] * 4)
    assert status.spent.usd == pytest.approx(cost.total.money.usd)

    other = small_config(tmp_path, *overrides, f"output={tmp_path}/second", f"store={tmp_path}/run")
    lancer.run(other)
    reused = read_cost(other.output)
    judge = reused.stages["judge"]
    assert (judge.calls, judge.reused_calls, judge.reused_tokens) == (0, CALLS, cost.stages["judge"].tokens)
    assert any(line.startswith("judge") and line.endswith("not known") for line in lines(reused))
