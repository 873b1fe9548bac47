"""Counting engines count what the real ones would, and answer in the form that is asked for."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from lancer.engines.bi_encoder import BiEncoder, BiEncoderConfig
from lancer.engines.counting import CountingScorer, CountingText, example_of
from lancer.engines.http_engine import HttpConfig
from lancer.engines.protocols import Block, Message, Sampling
from lancer.engines.tokenizers import model_tokens
from lancer.engines.vllm_engine import VllmConfig
from lancer.prompts import judge
from lancer.prompts.reading import read_rating

CONFIG = VllmConfig(model="embedded:smollm2", max_model_len=512)
DOCUMENT = "The lake is forty metres deep in the middle. Perch and pike live in it. " * 3


def prompt(question: str, *, document: str = DOCUMENT) -> list[Message]:
    return judge.render(request="a report on the lake", document=document, sub_question=question)


def engine(config: VllmConfig = CONFIG) -> CountingText:
    return CountingText(config, lambda _: "3")


def test_prompts_are_counted_as_the_engine_encodes_them_and_a_document_is_cached_for_its_next_question() -> None:
    tokens = model_tokens(CONFIG)
    assert tokens is not None
    prompts = [prompt("How deep is the lake?"), prompt("Which fish live in the lake?")]
    first, second = engine().generate(prompts, Sampling(max_tokens=1, choice=judge.CHOICES))
    assert [first.prompt_tokens, second.prompt_tokens] == [tokens.chat.count(p) for p in prompts]
    assert first.cached_tokens == 0
    shared = len(tokens.chat.encode(prompts[0]).ids) - second.cached_tokens
    assert second.cached_tokens % 32 == 0
    assert 0 < shared < 64, "all but the question and what follows it"


def test_answers_have_the_form_that_is_asked_for() -> None:
    asked = [prompt("How deep is the lake?")]
    digit = engine().generate(asked, Sampling(max_tokens=3, choice=judge.CHOICES))[0]
    assert read_rating(digit.text).value is not None
    assert digit.output_tokens == 1

    expected = engine().generate(asked, Sampling(max_tokens=1, logprobs_of=("0", "1", "2", "3")))[0]
    assert sum(math.exp(p) for p in expected.logprobs) == pytest.approx(1)

    form = json.dumps(judge.schema(3))
    rated = engine().generate(asked, Sampling(max_tokens=64, json_schema=form))[0]
    assert json.loads(rated.text) == {"1": 0, "2": 0, "3": 0}
    assert 3 < rated.output_tokens < 64

    marked = judge.messages_of(
        judge.LAYOUTS["shared-prefix"].prompt(request=None, document="A lake.", sub_questions=["How deep is it?"]),
        scored="sub_question",
    )
    scored = engine().generate([marked], Sampling(max_tokens=1, score=True))[0]
    assert len(scored.logprobs) == 5  # How deep is it ?
    assert scored.output_tokens == 1


def test_a_prompt_that_is_too_long_is_refused_as_by_the_engine() -> None:
    found = engine().generate([prompt("How deep?", document="lake " * 600)], Sampling(max_tokens=1))[0]
    assert "is too long for a context of 512" in found.error
    assert found.prompt_tokens == 0


def test_near_the_limit_nothing_is_padded_as_in_the_engine() -> None:
    asked = prompt("How deep is the lake?")
    padded = engine().generate([asked], Sampling(max_tokens=1))[0].prompt_tokens
    tight = engine(VllmConfig(model="embedded:smollm2", max_model_len=padded))
    found = tight.generate([asked], Sampling(max_tokens=1))[0]
    assert not found.error
    assert found.prompt_tokens < padded


def test_without_a_tokenizer_a_token_is_four_characters_and_nothing_is_cached() -> None:
    found = CountingText(HttpConfig(base_url="http://x/v1", model="m"), lambda _: "0123456789")
    assert not found.exact
    assert not found.caches
    asked: list[Message] = [{"role": "user", "content": "x" * 96}]
    one, again = found.generate([asked, asked], Sampling(max_tokens=64))
    assert (one.prompt_tokens, one.output_tokens, again.cached_tokens) == (25, 4, 0)


def test_examples_of_json_schemas() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"type": "integer", "minimum": 2}, "minItems": 2},
            "b": {"type": "string"},
            "c": {"enum": ["x", "y"]},
            "d": {"type": "boolean"},
        },
    }
    assert example_of(schema) == {"a": [2, 2], "b": "text", "c": "x", "d": True}


@pytest.mark.parametrize("similarity", ["cosine", "max-sim", "best-sentence"])
def test_a_bi_encoder_counts_its_texts_once(similarity: Any) -> None:
    config = BiEncoderConfig(model="embedded:minilm", max_tokens=16, similarity=similarity)
    block = Block(documents=(DOCUMENT, "Perch.", "Perch."), sub_questions=("How deep is the lake?",))
    counted, real = CountingScorer(config).score([block])[0], BiEncoder(config).score([block])[0]
    assert counted.tokens == real.tokens
    assert counted.scores.shape == real.scores.shape
    assert np.array_equal(CountingScorer(config).score([block])[0].scores, counted.scores), "the same every time"
