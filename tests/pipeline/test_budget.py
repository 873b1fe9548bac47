"""What a run has spent over all its sessions, and when that is too much."""

from __future__ import annotations

from pathlib import Path

import pytest

from lancer.config import load_config
from lancer.engines.protocols import EngineClock
from lancer.errors import BudgetError, UsageError
from lancer.pipeline.budget import Budget
from lancer.pipeline.folder import read_sessions
from tests.pipeline.folders import RunMaker, ago

PRICES = "prices.llm={usd_per_device_hour: 2, usd_per_million_prompt_tokens: 10, usd_per_million_output_tokens: 100}"
# An hour of one device, 90,000 tokens read anew, 10,000 from a cache, which is free, and 1,000 written: $3.
CLOCK = EngineClock(
    startup_s=600, busy_s=2000, idle_s=1000, calls=9, tokens=101_000, cached_tokens=10_000, output_tokens=1000
)


def budget(run: RunMaker) -> Budget:
    return Budget(run.config, run.plan.engines, read_sessions(run.store))


def test_a_session_is_added_to_the_earlier_ones(tmp_path: Path) -> None:
    run = RunMaker(tmp_path, PRICES, "limits={usd: 6.5, hours: 4}")
    run.begin()
    run.session(CLOCK, status="finished", started=ago(7200), heartbeat=ago(0))
    found = budget(run).spent({"llm": [CLOCK]}, 1800)
    assert found.money.usd == pytest.approx(2 * (2 + 0.9 + 0.1))
    assert found.hours == pytest.approx(2.5, abs=0.01)
    budget(run).check({"llm": [CLOCK]}, 1800)
    with pytest.raises(BudgetError) as caught:
        budget(run).check({"llm": [CLOCK, CLOCK]}, 7300)
    message = str(caught.value)
    assert "USD 9.00 of limits.usd 6.5; 4.03 hours of limits.hours 4 (USD: llm 9.00)" in message
    assert "what was finished is kept" in message
    assert caught.value.exit_code == 7


def test_what_was_spent_does_not_change_with_the_config(tmp_path: Path) -> None:
    run = RunMaker(tmp_path, PRICES, "limits.usd=100")
    run.begin()
    price = run.config.prices["llm"].model_dump(mode="json")
    run.session(CLOCK, status="finished", terms={"llm": {"devices": 1.0, "price": price}})
    cheaper = RunMaker(tmp_path, "prices.llm={usd_per_device_hour: 1}", "limits.usd=100")
    assert budget(cheaper).spent({}, 0).money.usd == pytest.approx(3.0)
    assert budget(cheaper).spent({"llm": [CLOCK]}, 0).money.usd == pytest.approx(3.0 + 1.0)


def test_nothing_is_checked_without_a_limit(tmp_path: Path) -> None:
    run = RunMaker(tmp_path, PRICES)
    budget(run).check({"llm": [CLOCK]}, 1e9)


def test_names_of_one_engine_are_paid_once_and_engines_without_a_price_are_named(tmp_path: Path) -> None:
    run = RunMaker(tmp_path, PRICES, "engines.same={kind: synthetic}", "judge.engine=same", "limits.usd=1")
    with pytest.raises(BudgetError, match=r"USD 3\.00 of limits\.usd 1 \(USD: llm 3\.00\); what"):
        budget(run).check({"same": [CLOCK], "llm": [CLOCK]}, 1)
    decomposed = "decompose={source: llm, n: 2}"
    b = ("engines.b={kind: synthetic, seed: 1}", "judge.engine=b")
    other = RunMaker(tmp_path, PRICES, decomposed, *b, "limits.usd=1")
    with pytest.raises(BudgetError, match="without a price: b;"):
        budget(other).check({"b": [CLOCK], "llm": [CLOCK]}, 1)


def test_a_limit_in_dollars_needs_prices(tmp_path: Path) -> None:
    RunMaker(tmp_path)
    with pytest.raises(UsageError, match=r"`limits\.usd` needs `prices`"):
        load_config(tmp_path / "config.yaml", ["limits.usd=1"])
