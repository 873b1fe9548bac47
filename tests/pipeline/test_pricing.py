"""Shares and money, by hand."""

from __future__ import annotations

import pytest

from lancer.config import PriceConfig
from lancer.engines.protocols import Generation
from lancer.pipeline.pricing import (
    EngineUse,
    Money,
    Sums,
    add_up,
    by_query,
    by_stage,
    per_thousand,
    price,
    spread,
    unit_of,
)
from lancer.stages.records import LedgerRecord, of_generations


def judged(query_id: str, *, prompt: int, cached: int = 0, output: int = 0, calls: int = 1) -> LedgerRecord:
    return LedgerRecord(
        query_id=query_id,
        stage="judge",
        engine="llm",
        calls=calls,
        pairs=calls,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
    )


# 100 s on two devices each: 200 device seconds.
LLM = EngineUse(name="llm", devices=2, startup_s=10, busy_s=70, idle_s=20)


def test_seconds_are_shared_by_tokens_that_were_computed() -> None:
    records = [judged("a", prompt=100, cached=60, output=10), judged("b", prompt=150, cached=0, output=0)]
    a, b = price(records, {"llm": LLM})
    assert [a.device_s, b.device_s] == pytest.approx([200 * 50 / 200, 200 * 150 / 200])


def test_without_tokens_pairs_count_and_without_pairs_calls() -> None:
    scored = [LedgerRecord(query_id=q, stage="estimate", engine="e", calls=1, pairs=n) for q, n in (("a", 1), ("b", 3))]
    found = [LedgerRecord(query_id=q, stage="retrieve", engine="e", calls=n) for q, n in (("a", 4), ("b", 1))]
    assert (unit_of([judged("a", prompt=1)]), unit_of(scored), unit_of(found)) == ("tokens", "pairs", "calls")
    use = {"e": EngineUse(name="e", busy_s=10)}
    assert [p.device_s for p in price(scored, use)] == [2.5, 7.5]
    assert [p.device_s for p in price(found, use)] == [8, 2]


def test_a_device_hour_costs_what_it_is_held_for() -> None:
    use = EngineUse(name="llm", devices=2, startup_s=900, busy_s=700, idle_s=200, price=_per_hour(3.0))
    records = [judged("a", prompt=30), judged("b", prompt=10)]
    assert use.for_time(use.device_s).usd == pytest.approx(3.0)  # 1,800 s on two devices: one device hour
    assert [p.money.usd for p in price(records, {"llm": use})] == pytest.approx([2.25, 0.75])


def test_tokens_cost_by_what_they_are() -> None:
    use = EngineUse(name="llm", busy_s=5, price=PER_TOKEN)
    (p,) = price([judged("a", prompt=1_000_000, cached=400_000, output=100_000)], {"llm": use})
    assert p.money.usd == pytest.approx(0.6 * 1 + 0.4 * 0.1 + 0.1 * 5)


def test_what_has_no_price_is_not_free() -> None:
    records = [judged("a", prompt=10), LedgerRecord(query_id="a", stage="retrieve", engine="bm25", calls=1)]
    uses = {"llm": LLM, "bm25": EngineUse(name="bm25", busy_s=1, price=_per_hour(3600))}
    llm, bm25 = price(records, uses)
    assert llm.money.known is None
    assert llm.money.as_dict() == {"usd": None, "without_price": ["llm"]}
    assert bm25.money.known == pytest.approx(1.0)
    both = add_up([llm, bm25]).money
    assert both.as_dict() == {"usd": pytest.approx(1.0), "without_price": ["llm"]}
    assert price([LedgerRecord(query_id="a", stage="select")], {})[0].money.known == 0.0, "no engine: nothing to pay"
    free = EngineUse(name="llm", busy_s=1, price=PriceConfig())
    assert price(records[:1], {"llm": free})[0].money.known == 0.0, "a price of 0 is a price"


def test_reused_calls_are_paid_already_at_what_they_would_have_cost() -> None:
    cached = Generation(text="5", prompt_tokens=100, cached_tokens=60, output_tokens=10, reused=True)
    reused = of_generations([cached] * 2, query_id="a", stage="judge", engine="llm")
    assert (reused.calls, reused.reused_calls, reused.reused_tokens) == (0, 2, 220)
    now = judged("b", prompt=100, output=0)
    by_time = EngineUse(name="llm", busy_s=3600, price=_per_hour(2.0))
    a, b = price([reused, now], {"llm": by_time})
    assert (a.money.usd, a.device_s) == (0, 0)
    assert b.money.usd == pytest.approx(2.0)
    assert a.reused.usd == pytest.approx(2.0)  # 2 x (40 + 10) computed tokens then, as 100 now
    a, _ = price([reused, now], {"llm": EngineUse(name="llm", price=PER_TOKEN)})
    assert a.reused.usd == pytest.approx((80 * 1 + 120 * 0.1 + 20 * 5) / 1e6)


def test_reuse_alone_tells_its_price_by_tokens_but_not_by_time() -> None:
    reused = of_generations(
        [Generation(text="5", prompt_tokens=100, reused=True)], query_id="a", stage="judge", engine="llm"
    )
    (by_token,) = price([reused], {"llm": EngineUse(name="llm", price=PER_TOKEN)})
    assert by_token.reused.usd == pytest.approx(100 / 1e6)
    (by_time,) = price([reused], {"llm": EngineUse(name="llm", price=_per_hour(1))})
    assert by_time.reused.known is None


def test_sums_by_stage_and_query_and_per_thousand() -> None:
    records = [
        judged("a", prompt=100, cached=50, calls=2),
        judged("b", prompt=100, cached=50, output=10, calls=4),
        LedgerRecord(query_id="a", stage="select"),
        LedgerRecord(query_id="b", stage="select"),
    ]
    priced = price(records, {"llm": LLM})
    stages = {stage: add_up(own) for stage, own in by_stage(priced).items()}
    assert list(stages) == ["judge", "select"]
    judge = stages["judge"]
    assert (judge.queries, judge.calls, judge.tokens, judge.cached_share) == (2, 6, 210, 0.5)
    assert judge.device_s == pytest.approx(LLM.device_s), "shares add up to the whole"
    assert {q: add_up(own).calls for q, own in by_query(priced).items()} == {"a": 2, "b": 4}


def test_a_thousand_queries_by_the_queries_that_each_stage_has_had() -> None:
    early = Sums(queries=4, calls=4, device_s=2, money=Money(1.0))
    late = Sums(queries=1, calls=10, device_s=3, money=Money(0.0, frozenset({"x"})))
    found = per_thousand([early, late, Sums()])
    assert (found.counts["calls"], found.counts["device_s"]) == (1000 + 10_000, 500 + 3000)
    assert found.as_dict()["usd"] == 250.0
    assert found.as_dict()["without_price"] == ["x"]


def test_spread_over_queries() -> None:
    assert spread([float(n) for n in range(1, 102)]) == {"p50": 51.0, "p95": 96.0, "max": 101.0}
    assert spread([]) == {}


def test_money_adds_up() -> None:
    assert Money(1.0, frozenset({"a"})) + Money(2.0, frozenset({"b"})) == Money(3.0, frozenset({"a", "b"}))
    assert sum([Money(1.0)] * 3, Money()).times(2) == Money(6.0)


PER_TOKEN = PriceConfig(
    usd_per_million_prompt_tokens=1, usd_per_million_cached_tokens=0.1, usd_per_million_output_tokens=5
)


def _per_hour(usd: float) -> PriceConfig:
    return PriceConfig(usd_per_device_hour=usd)
