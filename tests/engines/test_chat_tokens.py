"""Chat prompts as tokens: a padded prompt shares whole blocks, and everything else is what the tokenizer says."""

from __future__ import annotations

import pytest

from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.embedded import resolve_model
from lancer.engines.protocols import Message, Sampling
from lancer.prompts.answer import answer_of, opening_of
from lancer.prompts.judge import LAYOUTS, messages_of

BLOCK = 32
DOCUMENT = "Trees hold soil. Their roots bind it, and so less of it is washed away by rain. "


@pytest.fixture(scope="module")
def tokenizer() -> object:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve_model("embedded:smollm2").path_or_id)


def prompt(
    question: str, *, layout: str = "shared-prefix", pad: bool = True, scored: str | None = None
) -> list[Message]:
    filled = LAYOUTS[layout].prompt(request="Report on trees.", document=DOCUMENT * 3, sub_questions=[question])
    return messages_of(filled, pad=pad, scored=scored)


def plain(tokenizer: object, messages: list[Message]) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(  # type: ignore[attr-defined]
        [{"role": m["role"], "content": m["content"]} for m in messages], add_generation_prompt=True, return_dict=False
    )
    return ids


@pytest.mark.parametrize("layout", ["shared-prefix", "published"])
def test_without_padding_the_tokens_are_the_chat_templates(tokenizer: object, layout: str) -> None:
    tokens = ChatTokens(tokenizer, {}, block=BLOCK)
    for question in ("Why do trees hold soil?", "\u00bfQu\u00e9 hacen los \u00e1rboles?", "1. x {y} <|im_end|> "):
        asked = prompt(question, layout=layout, pad=False)
        assert tokens.encode(asked).ids == plain(tokenizer, asked)


def uneven(question: str) -> list[Message]:
    """Its document ends inside a block, whatever the prompts of the stages say."""
    start = f"<document>\n{(DOCUMENT * 3).strip()}"
    shared = f"{start}\n</document>\n\n<question>\n"
    return [{"role": "user", "content": f"{shared}{question}", "shared": len(shared), "pad_at": len(start)}]


def test_padding_lets_questions_share_whole_blocks(tokenizer: object) -> None:
    tokens = ChatTokens(tokenizer, {}, block=BLOCK)
    one, other = tokens.encode(uneven("Why do trees hold soil?")), tokens.encode(uneven("Do roots bind it?"))
    common = next(i for i, (a, b) in enumerate(zip(one.ids, other.ids, strict=False)) if a != b)
    assert 0 < one.padding < BLOCK
    assert common % BLOCK == 0
    assert len(plain(tokenizer, uneven("Do roots bind it?"))) + other.padding == len(other.ids)
    newline = tokenizer.encode("\n")[0]  # type: ignore[attr-defined]
    without = list(other.ids)
    for _ in range(other.padding):
        without.remove(newline)
    assert sorted(without) == sorted(plain(tokenizer, uneven("Do roots bind it?")))


def test_an_engine_without_a_cache_pads_nothing(tokenizer: object) -> None:
    asked = prompt("Why do trees hold soil?")
    assert ChatTokens(tokenizer, {}).encode(asked).ids == plain(tokenizer, asked)


def test_padding_gives_way_where_there_is_no_room(tokenizer: object) -> None:
    tokens, asked = ChatTokens(tokenizer, {}, block=BLOCK), uneven("Why do trees hold soil?")
    padded = tokens.encode(asked)
    assert padded.padding
    assert tokens.encode(asked, room=len(padded.ids)) == padded
    assert tokens.encode(asked, room=len(padded.ids) - 1).ids == plain(tokenizer, asked)
    assert tokens.count(asked, room=1) == len(plain(tokenizer, asked))


def test_one_token_or_none(tokenizer: object) -> None:
    tokens = ChatTokens(tokenizer, {})
    assert tokenizer.decode([tokens.token_of("4")]) == "4"  # type: ignore[attr-defined]
    assert (tokens.token_of("45"), tokens.token_of("")) == (None, None)


@pytest.mark.parametrize(("layout", "place"), [("shared-prefix", "sub_question"), ("published", "document")])
def test_the_scored_part_is_found_among_the_tokens(tokenizer: object, layout: str, place: str) -> None:
    asked = prompt("Why do trees hold soil?", layout=layout, scored=place)
    encoded = ChatTokens(tokenizer, {}, block=BLOCK).encode(asked, score=True)
    assert encoded.scored is not None
    start, end = encoded.scored
    assert end == len(encoded.ids), "nothing after it is computed"
    text = tokenizer.decode(encoded.ids[start:end])  # type: ignore[attr-defined]
    assert text.strip() == ("Why do trees hold soil?" if place == "sub_question" else (DOCUMENT * 3).strip())
    if layout == "shared-prefix":
        assert (start - 1) % BLOCK == 0  # the token before it is computed, for its logits


def test_scoring_needs_a_mark(tokenizer: object) -> None:
    with pytest.raises(ValueError, match="marked"):
        ChatTokens(tokenizer, {}).encode(prompt("Why?"), score=True)


OPENS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<think>\n{% endif %}"
)


def test_an_output_after_a_thinking_block_that_the_template_opened_begins_with_its_mark(tokenizer: object) -> None:
    free, digit = Sampling(max_tokens=9), Sampling(max_tokens=1, choice=("0", "1"))
    form = Sampling(max_tokens=9, json_schema="{}")
    assert ChatTokens(tokenizer, {}).whole_output("It names 3", free) == "It names 3"
    opens = ChatTokens(tokenizer, {"chat_template": OPENS})
    assert opens.whole_output("It names 3", free) == "<think>\nIt names 3"
    assert answer_of(opens.whole_output("It names 3", free)) is None
    assert answer_of(opens.whole_output("It names 3.</think>4", free)) == "4"
    assert (opens.whole_output("1", digit), opens.whole_output('{"1": 0}', form)) == ("1", '{"1": 0}')
    assert opens.whole_output("It names 3", digit) == "<think>\nIt names 3", "a server that ignores choices"
    assert opens.whole_output("", free) == ""


@pytest.mark.parametrize("prompt", ["", "<think>\n\n</think>\n\n", "<|im_start|>assistant\n", "<think> about it"])
def test_a_prompt_that_ends_otherwise_opens_nothing(prompt: str) -> None:
    assert opening_of(prompt) == ""
