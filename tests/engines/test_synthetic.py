"""Answers without a model: reproducible, spread over the choices, readable by the prompts' own readers."""

from __future__ import annotations

import json
import math
import time
from collections import Counter

from lancer.engines.protocols import Block, Message, Sampling
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


def test_json_has_the_form_asked_for() -> None:
    ask = Sampling(max_tokens=100, json_schema=json.dumps(judge.schema(10)))
    answers = [json.loads(g.text) for g in SyntheticEngine(SyntheticConfig()).generate(prompts(100), ask)]
    assert {tuple(answer) for answer in answers} == {tuple(str(n) for n in range(1, 11))}
    counts = Counter(rating for answer in answers for rating in answer.values())
    assert set(counts) == set(range(6))
    assert all(abs(n - 1000 / 6) < 5 * 12 for n in counts.values())
    other = Sampling(max_tokens=100, json_schema='{"type": "array"}')
    refused = SyntheticEngine(SyntheticConfig()).generate(prompts(1), other)[0]
    assert "objects of enumerated values" in refused.error
    assert (refused.text, refused.finish) == ("", "error")


def test_logprobs_are_of_a_distribution() -> None:
    ask = Sampling(max_tokens=1, logprobs_of=judge.CHOICES)
    answers = SyntheticEngine(SyntheticConfig()).generate(prompts(200), ask)
    masses = [sum(math.exp(p) for p in g.logprobs) for g in answers]
    assert {len(g.logprobs) for g in answers} == {6}
    assert 0 < min(masses) < max(masses) < 1
    assert len({g.logprobs for g in answers}) == 200


def test_scores_are_one_per_token_of_the_marked_part() -> None:
    engine, score = SyntheticEngine(SyntheticConfig()), Sampling(max_tokens=1, score=True)
    filled = judge.layout_of("shared-prefix").prompt(request=None, document="trees", sub_questions=["12345678?"])
    marked = judge.messages_of(filled, scored="sub_question")
    answer, unmarked = engine.generate([marked, judge.messages_of(filled)], score)
    assert (answer.error, answer.text, len(answer.logprobs)) == ("", "", 3)
    assert all(-8 < p <= 0 for p in answer.logprobs)
    assert "marked" in unmarked.error


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


def test_a_pair_has_one_probability_whatever_is_around_it() -> None:
    documents, questions = tuple(f"document {i}" for i in range(60)), tuple(f"question {j}" for j in range(20))
    engine = SyntheticEngine(SyntheticConfig())
    whole, part = engine.score([Block(documents, questions), Block(documents[:7:-1], questions[3:5])])
    assert part.scores.tolist() == whole.scores[:7:-1, 3:5].tolist()
    assert (
        SyntheticEngine(SyntheticConfig(seed=1)).score([Block(documents, questions)])[0].scores[0, 0]
        not in whole.scores
    )
    assert 0 <= whole.scores.min() < 0.01 < 0.99 < whole.scores.max() < 1
    assert abs(whole.scores.mean() - 0.5) < 5 * 0.29 / 1200**0.5  # 1,200 numbers, each with a deviation of .29
    assert engine.clock().calls == 2
    assert engine.clock().tokens == whole.tokens + part.tokens
