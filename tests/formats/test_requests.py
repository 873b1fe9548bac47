"""Requests under all the names they come with."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from lancer.errors import InputError
from lancer.formats.requests import GivenCandidate, Request, read_requests


def read(tmp_path: Path, *records: object) -> list[Request]:
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_requests(path)


@pytest.mark.parametrize("name", ["qid", "query_id", "id", "request_id", "topic_id", "narrative_id", "_id"])
def test_id_aliases(name: str, tmp_path: Path) -> None:
    assert read(tmp_path, {name: "7", "text": "x"}) == [Request("7", "x")]


def test_the_first_id_of_the_list_wins(tmp_path: Path) -> None:
    assert read(tmp_path, {"_id": "b", "qid": "a", "text": "x"})[0].query_id == "a"


def test_text_precedence(tmp_path: Path) -> None:
    order = ["query", "text", "request", "question", "problem_statement", "narrative", "title"]
    for first in range(len(order)):
        record = {"id": "1", **{name: f"the {name}" for name in reversed(order[first:])}}
        assert read(tmp_path, record)[0].text == f"the {order[first]}"


def test_an_empty_field_gives_way(tmp_path: Path) -> None:
    assert read(tmp_path, {"id": "1", "query": " ", "text": None, "title": "x"})[0].text == "x"


def test_fields_beside_the_text_are_kept(tmp_path: Path) -> None:
    record = {"id": "1", "request": "r", "title": "t", "background": "b", "problem_statement": "p", "limit": 2000}
    assert read(tmp_path, record) == [
        Request("1", "r", title="t", background="b", problem_statement="p", limit=2000)
    ]  # fmt: skip


def test_the_field_that_is_the_text_is_not_kept_twice(tmp_path: Path) -> None:
    assert read(tmp_path, {"id": "1", "title": "t", "problem_statement": "p"}) == [Request("1", "p", title="t")]
    assert read(tmp_path, {"id": "1", "title": "t"}) == [Request("1", "t")]


def test_candidate_lists_keep_their_order(tmp_path: Path) -> None:
    ids, objects, none, absent = read(
        tmp_path,
        {"id": "1", "text": "x", "doc_ids": ["b", 3, "a"]},
        {"id": "2", "text": "x", "candidates": ["b", {"doc_id": "a", "score": 2, "title": "T", "contents": "body"}]},
        {"id": "3", "text": "x", "doc_ids": []},
        {"id": "4", "text": "x"},
    )
    assert ids.candidates == (GivenCandidate("b"), GivenCandidate("3"), GivenCandidate("a"))
    assert objects.candidates == (GivenCandidate("b"), GivenCandidate("a", 2.0, "T", "body"))
    assert none.candidates == ()
    assert absent.candidates is None


def test_castorini(tmp_path: Path) -> None:
    record = {
        "query": {"qid": 264014, "text": "how long is life cycle of flea"},
        "candidates": [
            {"docid": "96852", "score": 14.97, "doc": {"title": "Fleas", "segment": "A flea lives long."}},
            {"docid": 4834547, "score": -1, "doc": {"contents": "The life cycle."}},
            {"docid": "5", "score": 0.5, "doc": "Bare text."},
        ],
    }
    assert read(tmp_path, record) == [
        Request(
            "264014",
            "how long is life cycle of flea",
            candidates=(
                GivenCandidate("96852", 14.97, "Fleas", "A flea lives long."),
                GivenCandidate("4834547", -1.0, None, "The life cycle."),
                GivenCandidate("5", 0.5, None, "Bare text."),
            ),
        )
    ]


def test_both_candidate_fields_are_too_many(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="doc_ids and candidates are both given"):
        read(tmp_path, {"id": "1", "text": "x", "doc_ids": ["a"], "candidates": ["b"]})


def test_array_items_are_named_by_their_own_line(tmp_path: Path) -> None:
    path = tmp_path / "requests.json"
    path.write_text('\n[\n  {"id": "1",\n   "text": "[,]\\n"},\n\n  {"id": "2", "text": ""}\n]\n')
    with pytest.raises(InputError, match=r"requests\.json:6: query '2': the text is empty"):
        read_requests(path)


def test_the_name_decides_before_the_content(tmp_path: Path) -> None:
    tsv, jsonl = tmp_path / "a.tsv.gz", tmp_path / "a.jsonl"
    tsv.write_bytes(gzip.compress(b"{1}\tx\n"))
    jsonl.write_text('"1"\t"x"\n')
    assert read_requests(tsv) == [Request("{1}", "x")]
    with pytest.raises(InputError, match=r"a\.jsonl:1: not JSON"):
        read_requests(jsonl)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "count", "first_id"),
    [
        ("dl19-subquestions/queries.tsv", 22, "19335"),
        ("lancer-duc04/data/crux-mds-duc04.request.jsonl", 50, "duc04-test-0"),
        ("nfcorpus/queries.jsonl.gz", 3237, "PLAIN-3"),
        ("longeval26-task4/queries.tsv", 47, "aa42e210a361571ff4d1fad892b75d15"),
        ("listwise-recorded/queries.tsv", 11, "104861"),
    ],
)
def test_real_requests(shared_data: Path, name: str, count: int, first_id: str) -> None:
    requests = read_requests(shared_data / name)
    assert (len(requests), requests[0].query_id) == (count, first_id)
    assert all(request.text and request.candidates is None for request in requests)
