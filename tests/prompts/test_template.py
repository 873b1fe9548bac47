from __future__ import annotations

from pathlib import Path

import pytest

from lancer.errors import InputError, UsageError
from lancer.prompts.judge import LAYOUTS, layout_of, render
from lancer.prompts.template import Template, load_template, parse_template

VALUES = {"rubric": "R", "request": "Q", "document": "D", "sub_question": "S"}


def test_places_are_filled_once_and_other_braces_mean_nothing() -> None:
    template = parse_template('{document} {"rating": 3} {} {0} {{x + 1}} %s {sub_question}')
    filled = template.fill(rubric="R", document="{sub_question} {rubric}", sub_question="{document}")
    assert filled.content == '{sub_question} {rubric} {"rating": 3} {} {0} {{x + 1}} %s {document}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{document}\n{sub_question}\n{documnt}", "p.txt:3: unknown place '{documnt}'; did you mean 'document'?"),
        (
            "{document}\n\n{question} {sub_question}",
            "p.txt:3: unknown place '{question}'; did you mean 'sub_question'?",
        ),
        ("{ document }\n{sub_question}", "p.txt:1: write {document} without blanks, not '{ document }'"),
        ("{rubric}\n{document}\n", "p.txt:2: the prompt ends without {sub_question}"),
        ("{sub_question}", "p.txt:1: the prompt ends without {document}"),
        ("", "p.txt:1: the prompt ends without {document}"),
        ("{document}{sub_question}", "p.txt:1: put a blank or a line end before {sub_question}"),
    ],
)
def test_a_wrong_file_is_refused_by_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.txt"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        load_template(str(path))
    assert str(error.value).removeprefix(f"{tmp_path}/").startswith(message)


def test_a_file_may_have_a_byte_order_mark_and_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "p.txt"
    path.write_bytes("\ufeff{document}\r\n{sub_question}\r\n".encode())
    assert load_template(str(path)) == Template("{document}\n{sub_question}")


def test_a_file_that_is_missing_or_not_utf_8(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.txt"):
        load_template(str(tmp_path / "none.txt"))
    (tmp_path / "latin.txt").write_bytes(b"{document}\n\xe9")
    with pytest.raises(InputError, match=r"latin\.txt:2: not UTF-8"):
        load_template(str(tmp_path / "latin.txt"))


@pytest.mark.parametrize(
    ("text", "without"),
    [
        ("a\n\nR: {request}\n\n{document} {sub_question}", "a\n\nD S"),
        ("{document}\n\nq\n{request}\n{sub_question}", "D\n\nq\nS"),
        ("{document}\n\nq: {request} {sub_question}", "D\n\nq: S"),
    ],
)
def test_without_a_request_its_place_goes(text: str, without: str) -> None:
    assert parse_template(text).fill(rubric="R", document="D", sub_question="S").content == without


def test_what_the_sub_questions_of_a_document_share() -> None:
    filled = parse_template("{rubric}\n<d>{document}</d>\n{sub_question} {rubric}").fill(**VALUES)
    assert filled.content[: filled.document_end] == "R\n<d>D"
    assert filled.content[: filled.shared] == "R\n<d>D</d>\n"
    for text in (
        "{sub_question} {document}",
        "{document} {sub_question} {document}",
        "{sub_question}\n{document}\n{sub_question}",
    ):
        first = parse_template(text).fill(**VALUES)
        assert (first.document_end, first.shared) == (0, 0)


def test_a_file_replaces_a_layout_s_text_and_changes_its_identity() -> None:
    own = layout_of("shared-prefix", parse_template("{rubric}\nText: {document}\nAsked: {sub_question}\nRating:"))
    content = render(request="r", document="d", sub_question="q?", layout=own)[0]["content"]
    assert content.endswith("\nText: d\nAsked: q?\nRating:")
    assert own.identity() != LAYOUTS["shared-prefix"].identity()
    assert own.identity()["layout"] == "shared-prefix"
