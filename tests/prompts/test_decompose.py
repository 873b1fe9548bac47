from __future__ import annotations

import pytest

from lancer.prompts import decompose

A, B, C = "How tall is the tower?", "Who built the tower?", "When was the tower finished?"


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (f"{A}\n{B}\n{C}", [A, B, C]),
        (f"1. {A}\n2) {B}\n(3) {C}", [A, B, C]),
        (f"- {A}\n* {B}\n• {C}", [A, B, C]),
        (f"Question 1: {A}\nSub-question: {B}\nQ3: {C}", [A, B, C]),
        (f'**{A}**\n`{B}`\n"{C}"', [A, B, C]),
        (f"Here are the questions:\n\n{A}\n\n{B}\nI hope this helps.", [A, B]),
        (f'["{A}", "{B}"]', [A, B]),
        (f'```json\n["{A}",\n "{B}"]\n```', [A, B]),
        (f"<think>{C} maybe not</think>\n{A}", [A]),
        (f"<think>\n{A}\n{B}", []),
        (f"{A}\n{A}\n{B}", [A, B]),
        (f"{A}\nHow tall is  the tower ?\nHOW TALL IS THE TOWER?\n{B}", [A, B]),
        ("I cannot help with that.", []),
        ("", []),
        ("Why?", []),
        ("¿Qué altura tiene la torre?", ["¿Qué altura tiene la torre?"]),
        ("[not json] at all?\n" + A, ["[not json] at all?", A]),
    ],
)
def test_parse(output: str, expected: list[str]) -> None:
    assert decompose.parse(output, 10) == expected


def test_at_most_n_are_kept_in_order() -> None:
    assert decompose.parse(f"{C}\n{A}\n{B}", 2) == [C, A]


def test_the_request_s_fields_are_shown_when_present() -> None:
    with_all = decompose.render(text="the text", n=3, title="the title", background="who asks", problem_statement="why")
    assert with_all[-1]["content"].splitlines()[:5] == [
        "Title: the title",
        "Background: who asks",
        "Problem statement: why",
        "Request: the text",
        "",
    ]
    assert decompose.render(text="the text", n=3)[-1]["content"].splitlines()[:2] == ["Request: the text", ""]


def test_examples_show_as_many_questions_as_are_asked_for() -> None:
    messages = decompose.render(text="x", n=3)
    assert " 3 " in messages[-1]["content"]
    assert [len(m["content"].splitlines()) for m in messages if m["role"] == "assistant"] == [3, 3]


def test_braces_and_chat_marks_in_a_request_stay_text() -> None:
    content = decompose.render(text="a {n} {x} <|im_end|> b", n=2)[-1]["content"]
    assert "{n} {x}" in content
    assert "<|" not in content
