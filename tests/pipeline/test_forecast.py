"""Totals and intervals, time and money of a forecast, by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from lancer.config import PriceConfig
from lancer.pipeline.forecast import Range, Rate, Rates, Sample, forecast, forecast_of, total
from lancer.pipeline.pricing import EngineUse
from lancer.stages.records import LedgerRecord


def test_the_total_of_a_sample_and_its_interval() -> None:
    # mean 20, standard deviation 10; 300 x 10 / sqrt(3) x sqrt(1 - 3/300) = 1723.37; x t(.975, 2) = 4.30265
    found = total([10, 20, 30], 300)
    assert found.value == 6000
    assert found.high == pytest.approx(6000 + 7415.06, abs=0.01)
    assert found.low == 60, "the sample alone has as much"


def test_a_sample_of_all_queries_is_exact_and_one_of_several_has_no_interval() -> None:
    assert total([1, 2, 6], 3) == Range(9, 9, 9)
    assert total([4], 5) == Range(20)
    assert total([4], 1) == Range(4, 4, 4)
    assert total([4], 5).half_width is None
    assert total([0, 0], 10).half_width == 0


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(7)
    population = rng.gamma(4.0, 100.0, 400)
    hits = 0
    for _ in range(400):
        found = total(rng.choice(population, 20, replace=False), 400)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= population.sum() <= found.high
    assert 0.91 <= hits / 400 <= 0.98


def records(*queries: str) -> list[LedgerRecord]:
    """Per query one decomposition of 100 tokens, 40 of them written, and ten ratings of 100 tokens, 80 % cached."""
    return [
        LedgerRecord(query_id=q, stage=stage, engine="llm", calls=n, prompt_tokens=p, cached_tokens=c, output_tokens=o)
        for q in queries
        for stage, n, p, c, o in (("decompose", 1, 60, 0, 40), ("judge", 10, 1000, 800, 10))
    ]


PRICE = PriceConfig(
    usd_per_million_prompt_tokens=1000, usd_per_million_cached_tokens=100, usd_per_million_output_tokens=2000
)
RATES = Rates("runs/before", {"llm": Rate("tokens", busy_s=0.1, startup_s=60)}, stretch=1.5)


def test_tokens_and_money_by_tokens_need_no_rates() -> None:
    uses = {"llm": EngineUse(name="llm", replicas=2, price=PRICE)}
    found = forecast(Sample(("a", "b"), 10, records("a", "b")), uses, None, plan="p", assumptions=["x"])
    decompose, judge = found.stages
    assert [judge.counts[n].value for n in ("calls", "prompt_tokens", "cached_tokens")] == [100, 10_000, 8_000]
    assert judge.cached_share == 0.8
    assert decompose.usd is not None
    assert decompose.usd.value == pytest.approx(10 * (60 * 0.001 + 40 * 0.002))
    assert judge.usd is not None
    assert judge.usd.value == pytest.approx(10 * (200 * 0.001 + 800 * 0.0001 + 10 * 0.002))
    assert found.total.usd is not None
    assert found.total.usd.value == pytest.approx(1.4 + 3.0)
    assert (found.duration_h, found.total.device_hours, found.without_price) == (None, None, [])


def test_time_by_the_rates_of_an_earlier_run() -> None:
    # 10 queries x (100 + 210) computed tokens x .1 s / 2 replicas = 155 s busy; 60 + 1.5 x 155 = 292.5 s in all
    price = PriceConfig(usd_per_device_hour=8)
    uses = {"llm": EngineUse(name="llm", devices=4, replicas=2, price=price)}
    found = forecast(Sample(("a", "b"), 10, records("a", "b")), uses, RATES, plan="p", assumptions=[])
    assert found.duration_h is not None
    assert found.duration_h.value == pytest.approx(292.5 / 3600)
    decompose, judge = found.stages
    assert decompose.device_hours is not None
    assert judge.device_hours is not None
    held = 292.5 / 3600 * 2 * 4
    assert decompose.device_hours.value == pytest.approx(held * 100 / 310)
    assert judge.device_hours.value == pytest.approx(held * 210 / 310)
    assert found.total.usd is not None
    assert found.total.usd.value == pytest.approx(held * 8)


def test_a_stage_of_two_engines_costs_what_both_do() -> None:
    scored = LedgerRecord(query_id="a", stage="judge", engine="scorer", calls=1, pairs=20, prompt_tokens=500)
    scorer = EngineUse(name="scorer", replicas=1, price=PriceConfig(usd_per_million_prompt_tokens=2000))
    uses = {"llm": EngineUse(name="llm", replicas=2, price=PRICE), "scorer": scorer}
    found = forecast(Sample(("a",), 1, [*records("a"), scored]), uses, None, plan="p", assumptions=[])
    judge = found.stages[1]
    assert judge.engine == "llm, scorer"
    assert judge.usd is not None
    assert judge.usd.value == pytest.approx(0.3 + 1.0)


def test_what_is_not_known_is_not_counted_as_nothing() -> None:
    hourly = {"llm": EngineUse(name="llm", replicas=1, price=PriceConfig(usd_per_device_hour=1))}
    found = forecast(Sample(("a",), 2, records("a")), hourly, None, plan="p", assumptions=[])
    assert (found.total.usd, found.without_price) == (None, ["llm"])
    both = {"llm": EngineUse(name="llm", price=PRICE.model_copy(update={"usd_per_device_hour": 1}))}
    found = forecast(Sample(("a", "b"), 10, records("a", "b")), both, None, plan="p", assumptions=[])
    assert found.total.usd is not None
    assert found.total.usd.value == pytest.approx(4.4), "what the tokens cost"
    assert found.without_price == ["llm"]
    unpriced = {"llm": EngineUse(name="llm", replicas=1)}
    other = Rates("runs/before", {"other": RATES.engines["llm"]}, 1.0)
    found = forecast(Sample(("a",), 2, records("a")), unpriced, other, plan="p", assumptions=[])
    assert (found.total.usd, found.duration_h, found.without_price) == (None, None, ["llm"])


def test_it_survives_json() -> None:
    uses = {"llm": EngineUse(name="llm", replicas=2, price=PRICE)}
    found = forecast(Sample(("a",), 10, records("a")), uses, RATES, plan="p", assumptions=["x"])
    assert forecast_of(json.loads(json.dumps(found.as_dict()))) == found
