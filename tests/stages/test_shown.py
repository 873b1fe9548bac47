"""With SmolLM2's own tokenizer: whatever documents meet in a prompt, it fits."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.tokenizers import model_tokens
from lancer.engines.vllm_engine import VllmConfig
from lancer.reranking.base import ByModel
from lancer.reranking.graded import GradedRerank
from lancer.reranking.listwise import ListwiseRerank
from lancer.reranking.pointwise import PointwiseRerank
from lancer.reranking.setwise import SetwiseRerank
from lancer.stages.shown import shown
from tests.scripted import Engines

CONTEXT = 4096
QUERY = "a report on the bridge"


@pytest.fixture(scope="module")
def chat() -> ChatTokens:
    tokens = model_tokens(VllmConfig(model="embedded:smollm2"))
    assert tokens is not None
    return tokens.chat


def document(number: int, sentences: int) -> str:
    return " ".join(f"In the year {1800 + i} bridge {number} was closed for {i} days." for i in range(sentences))


DOCUMENTS = [document(n, 1 + n % 40) for n in range(60)]


@pytest.mark.parametrize("kind", [ListwiseRerank, SetwiseRerank, PointwiseRerank, GradedRerank])
def test_any_documents_of_a_prompt_fit_together(chat: ChatTokens, kind: type[ByModel]) -> None:
    step: Any = kind(engine="llm", max_words=None)  # type: ignore[call-arg]
    context = {20: CONTEXT, 4: 2048, 1: 512}[step.together]
    texts, cut = shown(step, QUERY, DOCUMENTS, Engines(tokens=chat, context=context))
    assert cut == sum(new != old for new, old in zip(texts, DOCUMENTS, strict=True)) > 0
    assert all(old.startswith(new) for new, old in zip(texts, DOCUMENTS, strict=True))
    longest = sorted(texts, key=chat.count_text)[-step.together :]
    draws = [random.Random(seed).sample(texts, step.together) for seed in range(3)]
    assert all(chat.count(step.messages(QUERY, d)) + step.sampling().max_tokens <= context for d in [longest, *draws])
    room = context - step.sampling().max_tokens
    assert chat.count(step.messages(QUERY, longest)) > 0.9 * room, "no more is cut than must be"
    shortest_cut = min(chat.count_text(old) for new, old in zip(texts, DOCUMENTS, strict=True) if new != old)
    assert max(map(chat.count_text, texts)) < shortest_cut, "the longest are cut"


def test_words_are_counted_where_tokens_are_not_known() -> None:
    step = ListwiseRerank(engine="llm", max_words=2)
    texts, cut = shown(step, QUERY, ["1 b c d", "2 x", "3 y \n"], Engines())
    assert (texts, cut) == (["1 b", "2 x", "3 y"], 1)
    whole = ListwiseRerank(engine="llm", max_words=None)
    assert shown(whole, QUERY, DOCUMENTS, Engines(context=512)) == (DOCUMENTS, 0)


class NoTokenizer(Engines):
    def tokens(self, name: str) -> ChatTokens | None:
        raise AssertionError("loaded for documents that surely fit")


def test_the_tokenizer_is_loaded_only_when_bytes_do_not_show_that_a_window_fits() -> None:
    step = ListwiseRerank(engine="llm", window=2, step=1)
    assert shown(step, QUERY, ["one", "two", "three"], NoTokenizer(context=CONTEXT)) == (["one", "two", "three"], 0)
    with pytest.raises(AssertionError, match="loaded"):
        shown(step, QUERY, DOCUMENTS, NoTokenizer(context=CONTEXT))
