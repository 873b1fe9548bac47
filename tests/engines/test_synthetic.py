"""Answers without a model: reproducible, spread over the choices, readable by the prompts' own readers."""

from __future__ import annotations

import time
from collections import Counter

from lancer.engines.protocols import Message, Sampling
from lancer.engines.synthetic import SyntheticConfig, SyntheticEngine
from lancer.prompts import decompose, judge
from tests.clocks import check_age

RATE = Sampling(max_tokens=1, choice=judge.CHOICES)
ASK = Sampling(max_tokens=512)


def prompts(n: int) -> list[list[Message]]:
    return [judge.render(request=None, document=f"document {i}", sub_question="What?") for i in range(n)]


def test_answers_depend_on_seed_and_messages_only() -> None:
    one, other = SyntheticEngine(SyntheticConfig(seed=1)), SyntheticEngine(SyntheticConfig(seed=2))
    asked = prompts(100)
    first = one.generate(asked, RATE)
    assert one.generate(asked[::-1], RATE, priority=3)[::-1] == first
    assert SyntheticEngine(SyntheticConfig(seed=1)).generate(asked, RATE) == first
    differing = sum(a.text != b.text for a, b in zip(first, other.generate(asked, RATE), strict=True))
    assert differing > 60  # 5 of 6 are expected to differ


def test_ratings_are_spread_over_the_choices() -> None:
    counts = Counter(g.text for g in SyntheticEngine(SyntheticConfig()).generate(prompts(6000), RATE))
    assert set(counts) == set(judge.CHOICES)
    # Binomial(6000, 1/6): standard deviation 29.
    assert all(abs(n - 1000) < 5 * 29 for n in counts.values())


def test_questions_are_as_decompose_reads_them() -> None:
    asked = [decompose.render(text=f"Report on subject {i}.", n=10) for i in range(20)]
    lists = [decompose.parse(g.text, 10) for g in SyntheticEngine(SyntheticConfig()).generate(asked, ASK)]
    assert {len(q) for q in lists} == {10}
    assert len({q for questions in lists for q in questions}) == 200
    few = SyntheticEngine(SyntheticConfig(questions=3)).generate(asked[:1], ASK)
    assert len(decompose.parse(few[0].text, 10)) == 3


def test_tokens_are_counted_for_the_ledger() -> None:
    engine = SyntheticEngine(SyntheticConfig())
    (got,) = engine.generate([[{"role": "user", "content": "12345678"}]], RATE)
    assert (got.prompt_tokens, got.cached_tokens, got.output_tokens) == (4, 0, 1)  # "user", a separator, 8 characters
    clock = engine.clock()
    assert (clock.calls, clock.tokens) == (1, 5)
    engine.close()


def test_latency_is_of_a_call_not_of_a_prompt() -> None:
    born = time.monotonic()
    engine = SyntheticEngine(SyntheticConfig(latency_s=0.1))
    began = time.monotonic()
    got = engine.generate(prompts(50), RATE)
    assert 0.1 <= time.monotonic() - began < 2
    assert got[0].run_s == 0.1
    time.sleep(0.1)
    assert 0.1 <= check_age(engine, born).busy_s < 2


def test_the_identity_is_what_is_drawn() -> None:
    assert SyntheticConfig(latency_s=1).result_fields() == SyntheticConfig().result_fields()
    assert SyntheticConfig(seed=1).result_fields() != SyntheticConfig().result_fields()
