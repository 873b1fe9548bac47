"""The tokenizer of an engine's model, without the engine."""

from __future__ import annotations

import pytest

from lancer.engines.http_engine import HttpConfig
from lancer.engines.synthetic import SyntheticConfig
from lancer.engines.tokenizers import context_of, model_tokens
from lancer.engines.vllm_engine import VllmConfig, block_of
from lancer.errors import SetupError
from lancer.prompts.judge import render

SMOLLM2 = "embedded:smollm2"


def test_vllm_and_http_engines_of_one_model_count_alike() -> None:
    own = model_tokens(VllmConfig(model=SMOLLM2))
    served = model_tokens(HttpConfig(base_url="http://127.0.0.1:1/v1", model="smollm2", tokenizer=SMOLLM2))
    assert own is not None
    assert served is not None
    prompt = [{"role": "user", "content": "Why do trees hold soil?"}]
    assert own.chat.count(prompt) == served.chat.count(prompt) > 8  # type: ignore[arg-type]
    assert own.context == served.context == 8192


@pytest.mark.parametrize(
    ("config", "block"), [({}, 32), ({"num_gpus": 1}, 16), ({"num_gpus": 1, "block_size": 64}, 64)]
)
def test_prompts_are_padded_to_the_blocks_that_are_reckoned_with(config: dict[str, int], block: int) -> None:
    engine = VllmConfig.model_validate({"model": SMOLLM2, **config})
    tokens = model_tokens(engine)
    assert tokens is not None
    asked = render(request="r", document="Trees hold soil.", sub_question="Why?")
    shared = len(tokens.chat.encode(asked).ids) - len(
        tokens.chat.encode([{"role": "user", "content": asked[0]["content"]}]).ids
    )
    assert block_of(engine) == block
    assert 0 < shared < block


def test_the_limit_of_the_config_counts_where_it_is_lower() -> None:
    tokens = model_tokens(VllmConfig(model=SMOLLM2, max_model_len=512))
    assert tokens is not None
    assert tokens.context == 512


def test_engines_without_a_model_have_none() -> None:
    assert model_tokens(SyntheticConfig()) is None
    assert model_tokens(HttpConfig(base_url="http://127.0.0.1:1/v1", model="m")) is None


def test_a_model_without_a_chat_template_is_named() -> None:
    with pytest.raises(SetupError, match=r"minilm.*no chat template"):
        model_tokens(VllmConfig(model="embedded:minilm"))


def test_the_context_is_known_without_the_tokenizer() -> None:
    for config in (
        VllmConfig(model=SMOLLM2),
        VllmConfig(model=SMOLLM2, max_model_len=512),
        HttpConfig(base_url="http://127.0.0.1:1/v1", model="smollm2", tokenizer=SMOLLM2, max_model_len=2048),
    ):
        tokens = model_tokens(config)
        assert tokens is not None
        assert context_of(config) == tokens.context
    assert context_of(SyntheticConfig()) is None
