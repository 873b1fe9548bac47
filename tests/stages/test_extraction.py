"""Long documents are asked about in parts, counted with SmolLM2's tokenizer."""

from __future__ import annotations

import re

import pytest

from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.protocols import Generation, Sampling
from lancer.engines.tokenizers import model_tokens
from lancer.engines.vllm_engine import VllmConfig
from lancer.errors import SetupError
from lancer.prompts.unread import Unread
from lancer.schema import CompressStatus
from lancer.stages.extraction import Asked, ask, divide
from tests.scripted import Engines, ScriptedText

SENTENCES = [f"Sentence number {i} of a long report on the dams of the region." for i in range(120)]
OUTPUT = 64


@pytest.fixture(scope="module")
def tokens() -> ChatTokens:
    try:
        known = model_tokens(VllmConfig(model="embedded:smollm2"))
    except SetupError as error:
        pytest.skip(str(error))
    assert known is not None
    return known.chat


def asked(sentences: list[str]) -> Asked:
    return Asked("about dams", ["How high?"], sentences)


def samplings(attempts: int) -> list[Sampling]:
    return [Sampling(max_tokens=OUTPUT, seed=seed) for seed in range(attempts)]


def test_parts_fit_the_model_and_hold_every_sentence_once(tokens: ChatTokens) -> None:
    document = asked(SENTENCES)
    divide([document], Engines(tokens=tokens, context=1024), "llm", OUTPUT)
    assert len(document.parts) > 1
    assert [s for part in document.parts for s in part.sentences] == SENTENCES
    sizes = [tokens.count(document.messages(part.sentences, sharper=True)) for part in document.parts]
    assert max(sizes) <= 1024 - OUTPUT
    assert min(sizes[:-1]) > 1024 - OUTPUT - 40, "as long as fits"


def test_a_document_is_one_part_where_it_fits_or_nothing_is_known(tokens: ChatTokens) -> None:
    for sentences, engines in (
        (SENTENCES[:3], Engines(tokens=tokens, context=8192)),
        (SENTENCES[:3], Engines(tokens=tokens, context=1024)),  # only the tokenizer knows that it does
        (SENTENCES, Engines(context=1024)),
        (SENTENCES, Engines()),
    ):
        document = asked(sentences)
        divide([document], engines, "llm", OUTPUT)
        assert [part.sentences for part in document.parts] == [sentences]


def test_a_sentence_that_does_not_fit_is_alone(tokens: ChatTokens) -> None:
    document = asked(["One.", "dam " * 2000, "Three."])
    divide([document], Engines(tokens=tokens, context=1024), "llm", OUTPUT)
    assert [part.start for part in document.parts] == [0, 1, 2]


def test_numbers_are_those_of_a_part_and_only_an_unread_part_is_asked_again_or_stays_whole(tokens: ChatTokens) -> None:
    def answer(prompt: str, sampling: Sampling) -> str | Generation:
        first = int(re.findall(r"1\. Sentence number (\d+)", prompt)[0])
        return "[2, 900]" if first == 0 else "no idea"

    document = asked(SENTENCES)
    engines = Engines(tokens=tokens, context=2048, text=ScriptedText(answer))
    divide([document], engines, "llm", OUTPUT)
    first, *others = document.parts
    calls = ask([document], engines, "llm", samplings(2))
    assert [len(made[0]) for made in calls] == [1 + len(others), len(others)]
    assert document.status == CompressStatus.unreadable
    assert document.kept == [1, *range(len(first.sentences), len(SENTENCES))]
    assert first.extraction.unknown == 1
    assert {part.extraction.reason for part in others} == {Unread.no_number}


def test_an_output_at_the_token_limit_is_not_read() -> None:
    text = ScriptedText(lambda prompt, sampling: Generation(text="[1, 2", finish="length"))
    document = asked(SENTENCES[:4])
    engines = Engines(text=text)
    divide([document], engines, "llm", OUTPUT)
    ask([document], engines, "llm", samplings(1))
    assert document.parts[0].extraction.reason == Unread.cut_off
    assert document.kept == [0, 1, 2, 3]
