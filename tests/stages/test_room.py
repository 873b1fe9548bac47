"""With SmolLM2's own tokenizer: what is counted is what the engine computes."""

from __future__ import annotations

from typing import Any

import pytest

from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.tokenizers import model_tokens
from lancer.engines.vllm_engine import VllmConfig
from lancer.prompts.judge import LAYOUTS, messages_of
from lancer.stages.room import Pieces, Room
from tests.scripted import Engines

DOCUMENT = " ".join(f"In the year {1800 + i} the bridge was closed for {i} days." for i in range(60))
QUESTIONS = ["When?", "For how many days was the bridge closed in the year in which it was built, and why?", "Who?"]
CONTEXT, OUTPUT = 512, 3


@pytest.fixture(scope="module")
def chat() -> ChatTokens:
    return chat_tokens()


def chat_tokens() -> ChatTokens:
    tokens = model_tokens(VllmConfig(model="embedded:smollm2"))
    assert tokens is not None
    return tokens.chat


def room(chat: ChatTokens | None, context: int | None = CONTEXT, layout: str = "shared-prefix", **changes: Any) -> Room:
    values: dict[str, Any] = {
        "engines": Engines(tokens=chat, context=context),
        "engine": "llm",
        "layout": LAYOUTS[layout],
        "pad": layout == "shared-prefix",
        "output_tokens": OUTPUT,
        "document_tokens": None,
        "request": "a report on the bridge",
        "sub_questions": QUESTIONS,
    }
    return Room(**(values | changes))


def tokens_of(chat: ChatTokens, layout: str, document: str, asked: list[str]) -> int:
    prompt = LAYOUTS[layout].prompt(
        request="a report on the bridge", document=document, sub_questions=asked, sharper=True
    )
    return chat.count(messages_of(prompt, pad=layout == "shared-prefix"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_cut_fits_with_every_sub_question_and_one_sentence_more_does_not(chat: ChatTokens, layout: str) -> None:
    pieces = room(chat, layout=layout).pieces(DOCUMENT, "cut")
    (kept,) = pieces.texts
    asked = [QUESTIONS] if layout == "per-document" else [[q] for q in QUESTIONS]
    assert max(tokens_of(chat, layout, kept, a) for a in asked) + OUTPUT <= CONTEXT
    assert kept.endswith("days.")
    more = DOCUMENT[: DOCUMENT.index("days.", len(kept)) + 5]
    assert max(tokens_of(chat, layout, more, a) for a in asked) + OUTPUT > CONTEXT
    assert pieces.cut == len(DOCUMENT) - len(kept)


def test_windows_fit_and_leave_nothing_out(chat: ChatTokens) -> None:
    pieces = room(chat).pieces(DOCUMENT, "windows")
    assert len(pieces.texts) > 3
    assert pieces.cut == 0
    assert all(tokens_of(chat, "shared-prefix", t, [q]) + OUTPUT <= CONTEXT for t in pieces.texts for q in QUESTIONS)
    assert all(any(f"the year {1800 + i} the" in text for text in pieces.texts) for i in range(60))


def test_the_limit_of_a_document_is_in_its_own_tokens(chat: ChatTokens) -> None:
    kept = room(chat, context=8192, document_tokens=100).pieces(DOCUMENT, "cut").texts[0]
    ids = chat._encode(kept)
    assert 100 - 20 < len(ids) <= 100
    without = room(chat, context=None, document_tokens=100).pieces(DOCUMENT, "cut").texts[0]
    assert without == kept


def test_marks_in_a_document_count_as_they_are_written(chat: ChatTokens) -> None:
    document = "<|im_end|> " * 200
    kept = room(chat).pieces(document, "cut").texts[0]
    assert tokens_of(chat, "shared-prefix", kept, [QUESTIONS[1]]) + OUTPUT <= CONTEXT


class NoTokenizer(Engines):
    def tokens(self, name: str) -> ChatTokens | None:
        raise AssertionError("loaded for documents that surely fit")


def test_the_tokenizer_is_loaded_only_when_bytes_do_not_show_that_a_document_fits() -> None:
    short = DOCUMENT[:300]
    assert room(None, engines=NoTokenizer(context=8192)).pieces(short, "cut") == Pieces((short,))
    with pytest.raises(AssertionError, match="loaded"):
        room(None, engines=NoTokenizer(context=2048)).pieces(short, "cut")


def test_without_a_tokenizer_or_room_for_anything_nothing_is_cut(chat: ChatTokens) -> None:
    assert room(None, context=None).pieces(DOCUMENT, "cut") == Pieces((DOCUMENT,))
    assert room(None, context=None, document_tokens=16).pieces(DOCUMENT, "windows") == Pieces((DOCUMENT,))
    assert room(chat, context=50).pieces(DOCUMENT, "cut") == Pieces((DOCUMENT,)), "the engine says what is too long"
