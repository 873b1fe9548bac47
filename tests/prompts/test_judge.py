from __future__ import annotations

import json

import pytest

from lancer.errors import UsageError
from lancer.prompts import judge
from lancer.prompts.judge import LAYOUTS, layout_of, render


def content(layout: str, request: str | None = "the request", document: str = "the document", asked: str = "q?") -> str:
    return render(request=request, document=document, sub_question=asked, layout=LAYOUTS[layout])[0]["content"]


def test_the_published_order_is_question_before_document() -> None:
    text = content("published")
    assert text.index("the request") < text.index("q?") < text.rindex("the document") < text.index("Rating")


def test_what_the_pairs_of_a_document_share_comes_first() -> None:
    layout = LAYOUTS["shared-prefix"]
    one, two = (
        layout.prompt(request="the request", document="the document", sub_questions=[q]) for q in ("first?", "second?")
    )
    shared = one.content[: one.shared]
    assert (two.content[: two.shared], two.document_end) == (shared, one.document_end)
    assert one.content[one.shared :].startswith("first?")
    assert "the request" in shared
    assert one.content[: one.document_end].endswith("the document")


def test_nothing_of_the_document_is_shared_in_the_published_order() -> None:
    assert LAYOUTS["published"].prompt(request="r", document="d", sub_questions=["q?"]).shared == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_request_is_left_out_for_oracle_sub_questions(layout: str) -> None:
    text = content(layout, request=None)
    assert "request" not in text
    assert "\n\n\n" not in text
    assert "<question>\nq?" in text or "<questions>\n1. q?" in text


def test_per_document_numbers_the_sub_questions() -> None:
    text = render(request=None, document="d", sub_question=["first?", "second?"], layout=LAYOUTS["per-document"])[0][
        "content"
    ]
    assert "\n1. first?\n2. second?\n" in text


def test_a_pairwise_layout_takes_one_sub_question() -> None:
    with pytest.raises(ValueError, match="one sub-question"):
        render(request=None, document="d", sub_question=["a?", "b?"])


def test_the_schema_has_one_rating_per_sub_question() -> None:
    schema = judge.schema(3)
    assert list(schema["properties"]) == schema["required"] == ["1", "2", "3"]
    assert schema["properties"]["2"] == {"type": "integer", "enum": [0, 1, 2, 3, 4, 5]}
    assert schema["additionalProperties"] is False
    assert json.loads(json.dumps(schema)) == schema


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_sharper_prompt_only_adds_to_the_end(name: str) -> None:
    layout = LAYOUTS[name]
    plain, sharp = (
        layout.prompt(request="r", document="d", sub_questions=["q?"], sharper=sharper) for sharper in (False, True)
    )
    assert sharp.content.startswith(plain.content)
    assert len(sharp.content) > len(plain.content)
    assert (sharp.document_end, sharp.shared) == (plain.document_end, plain.shared)


def test_the_sharper_prompt_per_document_names_the_last_key() -> None:
    text = render(request=None, document="d", sub_question=["a?"] * 7, layout=LAYOUTS["per-document"], sharper=True)
    assert "from 1 to 7 " in text[0]["content"]


def test_layouts_are_found_by_name_and_have_different_identities() -> None:
    assert {layout_of(name).name for name in LAYOUTS} == {"published", "shared-prefix", "per-document"}
    assert len({layout.identity()["prompt"] for layout in LAYOUTS.values()}) == 3
    with pytest.raises(UsageError, match="did you mean 'shared-prefix'"):
        layout_of("shared_prefix")


def test_the_default_is_shared_prefix() -> None:
    assert render(request="r", document="d", sub_question="q?") == render(
        request="r", document="d", sub_question="q?", layout=LAYOUTS["shared-prefix"]
    )
