"""Small broken and odd files: each gives a message that names the place, or the one right reading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lancer.errors import InputError
from lancer.formats.qrels import read_qrels
from lancer.formats.ratings import read_ratings
from lancer.formats.requests import read_requests
from lancer.formats.runs import Run, read_run
from tests.selection.test_spec import REFUSED

BOM = b"\xef\xbb\xbf"
RUN = Run({"q1": [("d1", 2.0), ("d2", 1.0)]}, "t")


@dataclass(frozen=True)
class Fails:
    """What the message says, and the line it names; 0 = the file as a whole."""

    line: int
    says: str


def run(path: Path) -> object:
    return read_run(path).rankings


def requests(path: Path) -> object:
    return [(request.query_id, request.text) for request in read_requests(path)]


def qrels(path: Path) -> object:
    return [tuple(qrel) for qrel in read_qrels(path)]


def ratings(path: Path) -> object:
    return {query_id: (m.doc_ids, m.ratings) for query_id, m in read_ratings(path, RUN).items()}


def ratings_alone(path: Path) -> object:
    return read_ratings(path)


Case = tuple[str, Callable[[Path], object], bytes, object]
CASES: list[Case] = [
    # runs
    ("run: plain", run, b"q1 Q0 d1 1 2.5 t\nq1 Q0 d2 2 1.5 t\n", {"q1": [("d1", 2.5), ("d2", 1.5)]}),
    ("run: tabs and many blanks", run, b"q1\tQ0   d1\t1  2.5\tt\n", {"q1": [("d1", 2.5)]}),
    ("run: CRLF", run, b"q1 Q0 d1 1 2.5 t\r\nq1 Q0 d2 2 1 t\r\n", {"q1": [("d1", 2.5), ("d2", 1.0)]}),
    ("run: byte order mark", run, BOM + b"q1 Q0 d1 1 2.5 t\n", {"q1": [("d1", 2.5)]}),
    ("run: no line end at the end", run, b"q1 Q0 d1 1 2.5 t", {"q1": [("d1", 2.5)]}),
    ("run: blank lines", run, b"\n \t\nq1 Q0 d1 1 2.5 t\n\n", {"q1": [("d1", 2.5)]}),
    ("run: comment", run, b"# a run\nq1 Q0 d1 1 2.5 t\n", {"q1": [("d1", 2.5)]}),
    (
        "run: commented header of six words",
        run,
        b"#qid Q0 docid rank score tag\nq1 Q0 d1 1 2 t\n",
        {"q1": [("d1", 2.0)]},
    ),
    ("run: query id that starts with #", run, b"#1 Q0 d1 1 2.5 t\n", {"#1": [("d1", 2.5)]}),
    ("run: ids with : and #", run, b"q:1 Q0 news-1:4#12 1 2.5 t\n", {"q:1": [("news-1:4#12", 2.5)]}),
    ("run: ids are case-sensitive", run, b"q Q0 d 1 2 t\nQ Q0 D 1 2 t\n", {"q": [("d", 2.0)], "Q": [("D", 2.0)]}),
    (
        "run: scientific notation",
        run,
        b"q1 Q0 d1 1 1e-3 t\nq1 Q0 d2 2 2.5E-4 t\n",
        {"q1": [("d1", 1e-3), ("d2", 2.5e-4)]},
    ),
    ("run: negative scores", run, b"q1 Q0 d1 1 -1 t\nq1 Q0 d2 2 -2 t\n", {"q1": [("d1", -1.0), ("d2", -2.0)]}),
    ("run: ranks from 0", run, b"q1 Q0 d1 0 2 t\nq1 Q0 d2 1 1 t\n", {"q1": [("d1", 2.0), ("d2", 1.0)]}),
    ("run: score decides, not rank", run, b"q1 Q0 d1 1 1 t\nq1 Q0 d2 2 2 t\n", {"q1": [("d2", 2.0), ("d1", 1.0)]}),
    ("run: tie by rank", run, b"q1 Q0 d1 2 1 t\nq1 Q0 d2 1 1 t\n", {"q1": [("d2", 1.0), ("d1", 1.0)]}),
    ("run: tie by line", run, b"q1 Q0 d2 1 1 t\nq1 Q0 d1 1 1 t\n", {"q1": [("d2", 1.0), ("d1", 1.0)]}),
    ("run: repeated document, best score", run, b"q1 Q0 d1 1 1 t\nq1 Q0 d1 2 3 t\n", {"q1": [("d1", 3.0)]}),
    (
        "run: interleaved",
        run,
        b"a Q0 d 1 2 t\nb Q0 d 1 2 t\na Q0 e 2 1 t\n",
        {"a": [("d", 2.0), ("e", 1.0)], "b": [("d", 2.0)]},
    ),
    ("run: rank 10 after rank 9", run, b"q Q0 d10 10 1 t\nq Q0 d9 9 1 t\n", {"q": [("d9", 1.0), ("d10", 1.0)]}),
    ("run: empty", run, b"", Fails(0, "holds no run line")),
    ("run: only comments and blanks", run, b"# nothing\n\n", Fails(0, "holds no run line")),
    ("run: five columns", run, b"q1 Q0 d1 1 2.5 t\nq1 Q0 d2 2 1.5\n", Fails(2, "5 columns, 6 expected")),
    ("run: seven columns", run, b"q1 Q0 d1 1 2.5 my tag\n", Fails(1, "7 columns, 6 expected")),
    ("run: header", run, b"qid Q0 docid rank score tag\n", Fails(1, "field 'rank': found \"rank\"")),
    ("run: nan", run, b"q1 Q0 d1 1 nan t\n", Fails(1, "field 'score': found \"nan\"")),
    ("run: inf", run, b"q1 Q0 d1 1 inf t\n", Fails(1, 'found "inf", a finite number is expected')),
    ("run: minus infinity", run, b"q1 Q0 d1 1 -Infinity t\n", Fails(1, "finite")),
    ("run: score beyond a double", run, b"q1 Q0 d1 1 1e999 t\n", Fails(1, "finite")),
    ("run: decimal comma", run, b"q1 Q0 d1 1 2,5 t\n", Fails(1, 'found "2,5"')),
    ("run: Python's underscore", run, b"q1 Q0 d1 1 1_0 t\n", Fails(1, 'found "1_0"')),
    ("run: rank with a point", run, b"q1 Q0 d1 1.0 2 t\n", Fails(1, "field 'rank'")),
    ("run: negative rank", run, b"q1 Q0 d1 -1 2 t\n", Fails(1, "whole number of at least 0")),
    ("run: not UTF-8", run, b"q1 Q0 d1 1 2 t\nq1 Q0 d\xe9 2 1 t\n", Fails(2, "not UTF-8: byte 0xe9 at position 8")),
    ("run: UTF-16", run, "q1 Q0 d1 1 2 t\n".encode("utf-16"), Fails(1, "not UTF-8: byte 0xff")),
    ("run: two files put together", run, (BOM + b"q Q0 d 1 2 t\n") * 2, {"q": [("d", 2.0)]}),
    ("run: NUL in an id", run, b"q1 Q0 d\0 1 2 t\n", Fails(1, "an id contains a NUL character")),
    ("run: cut gzip", run, b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03", Fails(1, "damaged gzip")),
    # qrels
    ("qrels: plain", qrels, b"q1 0 d1 2\nq1 0 d2 0\n", [("q1", "0", "d1", 2), ("q1", "0", "d2", 0)]),
    ("qrels: 1.0", qrels, b"q1 0 d1 1.0\n", [("q1", "0", "d1", 1)]),
    ("qrels: sub-topics", qrels, b"q1 1 d1 1\nq1 2 d1 0\n", [("q1", "1", "d1", 1), ("q1", "2", "d1", 0)]),
    ("qrels: CRLF and byte order mark", qrels, BOM + b"q1 0 d1 1\r\n", [("q1", "0", "d1", 1)]),
    ("qrels: negative is unjudged", qrels, b"q1 0 d1 -1\nq1 0 d2 1\n", [("q1", "0", "d2", 1)]),
    ("qrels: exact repeat", qrels, b"q1 0 d1 1\nq1 0 d1 1.0\n", [("q1", "0", "d1", 1)]),
    ("qrels: BEIR", qrels, b"query-id\tcorpus-id\tscore\nq1\td1\t2\n", [("q1", "0", "d1", 2)]),
    ("qrels: comment", qrels, b"# judged by us\nq1 0 d1 1\n", [("q1", "0", "d1", 1)]),
    ("qrels: conflict", qrels, b"q1 0 d1 1\nq1 0 d1 2\n", Fails(2, "'d1' has grade 2 here and 1 on line 1")),
    ("qrels: conflict with unjudged", qrels, b"q1 0 d1 -1\nq1 0 d1 2\n", Fails(2, "-1 on line 1")),
    ("qrels: half a grade", qrels, b"q1 0 d1 0.5\n", Fails(1, "field 'grade': found \"0.5\"")),
    ("qrels: a word for a grade", qrels, b"q1 0 d1 high\n", Fails(1, "a whole number of at most 1000000 is expected")),
    ("qrels: nan", qrels, b"q1 0 d1 nan\n", Fails(1, "a whole number of at most 1000000 is expected")),
    ("qrels: a grade that trec_eval scores 0", qrels, b"q1 0 d1 1e9\n", Fails(1, "field 'grade': found \"1e9\"")),
    ("qrels: NUL in an id", qrels, b"q1 0 d\0 1\n", Fails(1, "an id contains a NUL character")),
    ("qrels: BEIR without its header", qrels, b"q1\td1\t2\n", Fails(1, "3 columns, 4 expected")),
    (
        "qrels: BEIR, a line too short",
        qrels,
        b"query-id\tcorpus-id\tscore\nq1\td1\n",
        Fails(2, "2 columns, 3 expected"),
    ),
    ("qrels: a run", qrels, b"q1 Q0 d1 1 2.5 t\n", Fails(1, "6 columns, 4 expected")),
    ("qrels: empty", qrels, b"\n", Fails(0, "holds no judgment")),
    ("qrels: only unjudged", qrels, b"q1 0 d1 -2\n", Fails(0, "holds no judgment")),
    # requests
    ("requests: TSV", requests, b"1\tfirst\n2\tsecond one\n", [("1", "first"), ("2", "second one")]),
    ("requests: TSV with header", requests, b"query_id\ttext\n1\tfirst\n", [("1", "first")]),
    ("requests: TSV, CRLF and byte order mark", requests, BOM + b"1\tfirst\r\n", [("1", "first")]),
    ("requests: number as id", requests, b'{"qid": 7, "query": "x"}', [("7", "x")]),
    ("requests: array", requests, b'[{"id": "a", "text": "x"},\n {"id": "b", "text": "y"}]', [("a", "x"), ("b", "y")]),
    ("requests: one object over lines", requests, b'{\n "id": "a",\n "text": "x"\n}\n', [("a", "x")]),
    ("requests: Castorini", requests, b'{"query": {"qid": 3, "text": "x"}, "candidates": []}', [("3", "x")]),
    ("requests: line separator in a text", requests, '{"id": "a", "text": "x\u2028y"}'.encode(), [("a", "x\u2028y")]),
    ("requests: empty", requests, b"", Fails(0, "holds no request")),
    ("requests: empty array", requests, b"[]", Fails(0, "holds no request")),
    ("requests: only a header", requests, b"qid\ttext\n", Fails(0, "holds no request")),
    ("requests: no tab", requests, b"1\tfirst\n2 second\n", Fails(2, "1 tab-separated columns, 2 expected")),
    ("requests: three columns", requests, b"1\tfirst\ttrain\n", Fails(1, "3 tab-separated columns")),
    ("requests: TSV, empty text", requests, b"1\tfirst\n2\t \n", Fails(2, "the text of query '2' is empty")),
    ("requests: TSV, no id", requests, b"\tfirst\n", Fails(1, "field 'query_id'")),
    ("requests: TSV, twice", requests, b"1\tx\n2\ty\n1\tz\n", Fails(3, "query id '1' is already on line 1")),
    (
        "requests: JSON, twice",
        requests,
        b'{"id": "1", "text": "x"}\n{"id": 1, "text": "y"}',
        Fails(2, "already on line 1"),
    ),
    (
        "requests: syntax",
        requests,
        b'{"id": "1", "text": "x"}\n{"id": "2", "text" "y"}',
        Fails(2, "not JSON: Expecting ':'"),
    ),
    ("requests: syntax in an array", requests, b'[{"id": 1, "text": "x"},\n{"id": 2,}]', Fails(2, "not JSON")),
    ("requests: no id", requests, b'{"query": "x"}', Fails(1, "no query id; one of qid, query_id")),
    ("requests: id is null", requests, b'{"qid": null, "query": "x"}', Fails(1, "no query id")),
    ("requests: id with a point", requests, b'{"qid": 1.5, "query": "x"}', Fails(1, "field 'qid': found 1.5")),
    ("requests: id with a blank", requests, b'{"qid": "a b", "query": "x"}', Fails(1, "'a b' contains blanks")),
    ("requests: NUL in an id", requests, b'{"qid": "a\\u0000", "query": "x"}', Fails(1, "contains a NUL character")),
    ("requests: no text", requests, b'{"qid": "1", "topic": "x"}', Fails(1, "query '1': no text")),
    ("requests: empty text", requests, b'{"qid": "1", "query": "  "}', Fails(1, "query '1': the text is empty")),
    ("requests: text is a list", requests, b'{"qid": "1", "query": ["x"]}', Fails(1, "field 'query': found [\"x\"]")),
    ("requests: a list", requests, b'{"qid": "1", "query": "x"}\n["1", "x"]', Fails(2, "a JSON object is expected")),
    ("requests: key twice", requests, b'{"qid": "1", "query": "x", "query": "y"}', Fails(1, "'query' appears twice")),
    ("requests: limit", requests, b'{"qid": "1", "query": "x", "limit": 0}', Fails(1, "field 'limit': found 0")),
    (
        "requests: candidate twice",
        requests,
        b'{"qid": "1", "query": "x", "doc_ids": ["a", "a"]}',
        Fails(1, "'a' is listed twice"),
    ),
    (
        "requests: NaN as a score",
        requests,
        b'{"qid": "1", "query": "x", "candidates": [{"docid": "a", "score": NaN}]}',
        Fails(1, "NaN is not a JSON number"),
    ),
    (
        "requests: score that is a text",
        requests,
        b'{"qid": "1", "query": "x", "candidates": [{"docid": "a", "score": "2"}]}',
        Fails(1, "field 'candidates[0].score': found \"2\""),
    ),
    (
        "requests: candidate without id",
        requests,
        b'{"qid": "1", "query": "x", "candidates": [{"docid": "a"}, {"text": "b"}]}',
        Fails(1, "field 'candidates[1]': no document id"),
    ),
    ("requests: half a surrogate pair", requests, b'{"qid": "1", "query": "\\ud800"}', Fails(1, "surrogate")),
    # ratings
    (
        "ratings: crux",
        ratings,
        b'{"id": "q1", "docid": "d1", "rating": [5, -1, null]}',
        {"q1": (["d1"], [[5, None, None]])},
    ),
    ("ratings: positional", ratings, b'{"q1": [[1, 2], [3, -1]]}', {"q1": (["d1", "d2"], [[1, 2], [3, None]])}),
    ("ratings: whole floats", ratings, b'{"q1": [[1.0], [2.0]]}', {"q1": (["d1", "d2"], [[1], [2]])}),
    (
        "ratings: keyed, a cell missing",
        ratings,
        b'{"query_id": "q", "doc_id": "a", "sub_question_id": "1", "rating": 4}\n'
        b'{"query_id": "q", "doc_id": "b", "sub_question_id": "2", "rating": 0}\n',
        {"q": (["a", "b"], [[4, None], [None, 0]])},
    ),
    ("ratings: empty", ratings, b"", Fails(0, "holds no rating")),
    ("ratings: six", ratings, b'{"q1": [[1], [6]]}', Fails(1, "field 'q1[1][0]': found 6, a whole number from 0 to 5")),
    ("ratings: minus two", ratings, b'{"q1": [[1], [-2]]}', Fails(1, "found -2")),
    ("ratings: between two ratings", ratings, b'{"q1": [[1], [2.5]]}', Fails(1, "found 2.5")),
    ("ratings: a text", ratings, b'{"q1": [[1], ["2"]]}', Fails(1, 'found "2"')),
    ("ratings: true", ratings, b'{"q1": [[1], [true]]}', Fails(1, "found true")),
    ("ratings: a row too many", ratings, b'{"q1": [[1], [2], [3]]}', Fails(1, "3 rows, the run has 2 documents")),
    (
        "ratings: a row too short",
        ratings,
        b'{"q1": [[1, 2], [3]]}',
        Fails(1, "field 'q1[1]': 1 ratings, the first row has 2"),
    ),
    ("ratings: a query not in the run", ratings, b'{"q1": [[1], [2]], "q2": [[1]]}', Fails(1, "field 'q2'")),
    (
        "ratings: a query of the run missing",
        ratings,
        b"{}",
        Fails(0, "no ratings for 1 queries of the run, such as 'q1'"),
    ),
    ("ratings: no run", ratings_alone, b'{"q1": [[1], [2]]}', Fails(0, "the run they were made from must be given")),
    ("ratings: query twice", ratings, b'{"q1": [[1], [2]], "q1": [[1], [2]]}', Fails(1, "the key 'q1' appears twice")),
    (
        "ratings: crux, other length",
        ratings,
        b'{"id": "q1", "docid": "d1", "rating": [5, 1]}\n{"id": "q1", "docid": "d2", "rating": [5]}',
        Fails(2, "1 ratings, the first document of query 'q1' has 2"),
    ),
    (
        "ratings: crux, document twice",
        ratings,
        b'{"id": "q1", "docid": "d1", "rating": [5]}\n{"id": "q1", "docid": "d1", "rating": [5]}',
        Fails(2, "query 'q1' has document 'd1' twice"),
    ),
    ("ratings: crux without document", ratings, b'{"id": "q1", "rating": [5]}', Fails(1, "no document id")),
    (
        "ratings: keyed, cell twice",
        ratings,
        b'{"query_id": "q", "doc_id": "a", "sub_question_id": "1", "rating": 4}\n' * 2,
        Fails(2, "query 'q' has document 'a' and sub-question '1' twice"),
    ),
    (
        "ratings: keyed without sub-question",
        ratings,
        b'{"query_id": "q", "doc_id": "a", "rating": 4}',
        Fails(1, "field 'sub_question_id'"),
    ),
]


@pytest.mark.parametrize(("read", "content", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_small_files(read: Callable[[Path], object], content: bytes, expected: object, tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(content)
    if not isinstance(expected, Fails):
        assert read(path) == expected
        return
    with pytest.raises(InputError) as caught:
        read(path)
    assert expected.says in str(caught.value)
    assert caught.value.file == path
    assert (caught.value.line or 0) == expected.line


def test_how_many_are_wrong() -> None:
    """At least 60 over five kinds of input; specs of selectors stand in their own table, as they are no files."""
    wrong = Counter(name.split(":")[0] for name, _, _, expected in CASES if isinstance(expected, Fails))
    wrong["selectors"] = len(REFUSED)
    assert wrong.keys() == {"run", "qrels", "requests", "ratings", "selectors"}
    assert min(wrong.values()) >= 10
    assert wrong.total() >= 60


@pytest.mark.parametrize("read", [run, qrels, requests, ratings])
def test_missing_file(read: Callable[[Path], object], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        read(tmp_path / "nowhere")
    with pytest.raises(InputError):
        read(tmp_path)
