"""Sub-questions keep their order and ids, whichever file they come in."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancer.errors import InputError
from lancer.formats.sub_questions import SubQuestion, read_sub_questions, write_sub_questions

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1).map(str.strip).filter(bool)


def read(tmp_path: Path, content: str) -> dict[str, list[SubQuestion]]:
    path = tmp_path / "sub-questions"
    path.write_text(content)
    return read_sub_questions(path)


@pytest.mark.parametrize(
    "content",
    [
        '{"q1": ["Who?", "Why?"], "q2": ["When?"]}',
        '{\n  "q1": [\n    "Who?",\n    "Why?"\n  ],\n  "q2": ["When?"]\n}\n',
        '{"q1": ["Who?", "Why?"]}\n{"q2": ["When?"]}\n',
        '{"query_id": "q1", "sub_questions": ["Who?", "Why?"]}\n{"qid": "q2", "sub_questions": ["When?"]}\n',
        '[{"id": "q1", "sub_questions": [{"text": "Who?"}, {"id": 2, "text": "Why?"}]},'
        ' {"id": "q2", "sub_questions": ["When?"]}]',
        "q1\t1\tWho?\nq2\t1\tWhen?\nq1\t2\tWhy?\n",
    ],
)
def test_all_shapes_say_the_same(content: str, tmp_path: Path) -> None:
    assert read(tmp_path, content) == {
        "q1": [SubQuestion("1", "Who?"), SubQuestion("2", "Why?")],
        "q2": [SubQuestion("1", "When?")],
    }


def test_a_blank_text_in_a_list_keeps_its_position(tmp_path: Path) -> None:
    assert read(tmp_path, '{"q1": ["Who?", "", "Why?"]}') == {
        "q1": [SubQuestion("1", "Who?"), SubQuestion("3", "Why?")]
    }


def test_a_query_may_have_none(tmp_path: Path) -> None:
    assert read(tmp_path, '{"q1": [], "q2": ["Who?"]}')["q1"] == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds no sub-question"),
        ('{"q1": []}', "holds no sub-question"),
        ('{"q1": ["Who?"], "q1": ["Why?"]}', ":1: not JSON: the key 'q1' appears twice"),
        ('{"q1": ["Who?"]}\n{"q1": ["Why?"]}', ":2: field 'q1': query 'q1' is already on line 1"),
        ('{"q1": "Who?"}', ":1: field 'q1': found \"Who?\", a list is expected"),
        ('{"q1": ["Who?", 5]}', "field 'q1[1]': found 5, a text is expected"),
        ('{"q1": [{"id": "a"}]}', "a sub-question is expected"),
        ('{"q1": [{"id": "a", "text": "Who?"}, {"id": "a", "text": "Why?"}]}', "the sub-question id 'a' appears twice"),
        ('{"sub_questions": ["Who?"]}', ":1: no query id"),
        ("q1\t1\tWho?\nq1\t1\tWhy?\n", ":2: sub-question '1' of query 'q1' is already on line 1"),
        ("q1\tWho?\n", ":1: 2 tab-separated columns, 3 expected"),
        ("q1\t1\t \n", ":1: field 'text': the text of sub-question '1' is empty"),
    ],
)
def test_errors(content: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, content)
    assert says in str(caught.value)


@given(given=st.dictionaries(st.from_regex(r"\A[a-z:#]{1,5}\Z"), st.lists(TEXTS, min_size=1), min_size=1))
def test_round_trip(given: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("sub-questions") / "a.jsonl"
    wanted = {
        query_id: [SubQuestion(f"s{position}", text) for position, text in enumerate(texts)]
        for query_id, texts in given.items()
    }
    write_sub_questions(path, wanted)
    assert read_sub_questions(path) == wanted


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "queries", "sub_questions"),
    [
        ("dl19-subquestions/subquestions.tsv", 22, 220),
        ("lancer-duc04/results/crux-mds-duc04-subquestions/qwen3-next-80b-a3b-instruct.json", 50, 100),
        ("lancer-duc04/results/crux-mds-duc04-subquestions/subquestions.oracle.json", 50, 749),  # one of 750 is blank
    ],
)
def test_real_files(shared_data: Path, name: str, queries: int, sub_questions: int) -> None:
    found = read_sub_questions(shared_data / name)
    assert (len(found), sum(map(len, found.values()))) == (queries, sub_questions)
