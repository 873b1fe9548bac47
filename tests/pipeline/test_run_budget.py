"""A budget ends a run, which goes on when there is more; a forecast stands beside what came of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import lancer
from lancer.config import Config
from lancer.errors import BudgetError
from lancer.pipeline.distributed.runner import run
from lancer.pipeline.estimating import estimate_run
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.plan import Plan, make_plan
from lancer.storage import Storage
from tests.pipeline.judged import judged_config

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("session_ray")]

PRICES = "prices.llm={usd_per_million_prompt_tokens: 1000}"
SLOW = "engines.llm.latency_s=3"  # of each call: a shard takes two


def plan_of(config: Config) -> Plan:
    storage = Storage()
    return make_plan(config, read_inputs(config, storage), storage)


def test_a_run_that_has_spent_its_budget_ends_and_goes_on_with_more(tmp_path: Path) -> None:
    # A query is about 5,000 tokens, so $5: the second shard is under way when the first one's price is seen.
    config = judged_config(tmp_path, PRICES, SLOW, "ray.workers=1", "limits.usd=3")
    with pytest.raises(BudgetError, match=r"USD \d+\.\d\d of limits\.usd 3 \(USD: llm"):
        lancer.run(config)
    record = json.loads((tmp_path / "run/run.json").read_text())
    assert record["status"] == "interrupted"
    finished = len(list((tmp_path / "run/ranking.parquet").glob("*.parquet")))
    assert 1 <= finished < record["shards"]

    said: list[str] = []
    with pytest.raises(BudgetError):
        run(config, say=said.append)
    assert not any(line.startswith("starting") for line in said), "nothing is paid for before the budget is looked at"

    more = lancer.run(judged_config(tmp_path, PRICES, "limits.usd=1000"))
    assert all(stage.reused_queries >= 1 for stage in more.stages)
    assert json.loads((tmp_path / "run/run.json").read_text())["status"] == "finished"


def test_hours_end_a_run_inside_a_long_call(tmp_path: Path) -> None:
    config = judged_config(tmp_path, "engines.llm.latency_s=120", f"limits.hours={8 / 3600}")
    began = time.monotonic()
    with pytest.raises(BudgetError, match=r"hours of limits\.hours 0\.00222"):
        lancer.run(config)
    assert 8 <= time.monotonic() - began < 40


def test_a_forecast_of_all_queries_with_a_known_engine_is_what_comes(tmp_path: Path) -> None:
    config = judged_config(tmp_path, PRICES)
    found = estimate_run(plan_of(config), sample=4)
    result = lancer.run(config, mode="overwrite")
    *stages, total = result.foretold
    assert [row.stage for row in stages] == ["decompose", "judge"]
    for row in (*stages, total):
        for name in ("calls", "prompt_tokens", "cached_share", "output_tokens"):
            assert row.predicted[name] == row.actual[name]
        assert row.predicted["usd"] == pytest.approx(row.actual["usd"])
    assert total.actual["hours"] is not None
    assert found.total.usd is not None
    assert found.total.usd.value == pytest.approx(total.actual["usd"])

    other = lancer.run(judged_config(tmp_path, PRICES, "judge.with_request=false"))
    assert other.foretold == [], "it was a forecast of other prompts"
