from __future__ import annotations

import json
from pathlib import Path

import pytest

from lancer.engines.documents import corpus_digest
from lancer.engines.sources import DocumentSource, candidate_documents, digest_of
from lancer.errors import InputError
from lancer.formats.requests import read_requests
from lancer.storage import Storage


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCER_CACHE", str(tmp_path / "cache"))


def write_requests(path: Path, *candidates: list[dict[str, str]]) -> str:
    """One request per list of candidates."""
    rows = [{"query_id": f"q{i}", "text": "?", "candidates": c} for i, c in enumerate(candidates)]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(path)


def digest(file: str) -> str:
    return digest_of(list(candidate_documents(read_requests(file), file)))


def test_documents_inside_requests_come_once(tmp_path: Path) -> None:
    a, b = {"docid": "a", "text": "water"}, {"docid": "b", "title": "Fish", "text": "perch"}
    file = write_requests(tmp_path / "r.jsonl", [a, b, {"docid": "bare"}], [b])
    found = [located.document for located in candidate_documents(read_requests(file), file)]
    assert {(d.doc_id, d.title or "", d.text) for d in found} == {("a", "", "water"), ("b", "Fish", "perch")}
    source = DocumentSource("requests", file, digest(file))
    assert source.open(Storage()).texts(["b", "bare", "a"]) == ["Fish\nperch", None, "water"]


def test_one_id_with_two_texts_is_refused(tmp_path: Path) -> None:
    file = write_requests(tmp_path / "r.jsonl", [{"docid": "a", "text": "x"}], [{"docid": "a", "text": "y"}])
    message = r"r\.jsonl: query 'q1': document 'a' has another text here than in an earlier request"
    with pytest.raises(InputError, match=message):
        list(candidate_documents(read_requests(file), file))


def test_a_digest_tells_contents_apart(tmp_path: Path) -> None:
    one = digest(write_requests(tmp_path / "1.jsonl", [{"docid": "a", "title": "x", "text": "y"}]))
    same = digest(write_requests(tmp_path / "2.jsonl", [{"docid": "a", "title": "x", "text": "y"}]))
    moved = digest(write_requests(tmp_path / "3.jsonl", [{"docid": "a", "text": "xy"}]))
    assert one == same
    assert one != moved


def test_a_corpus_is_stored_once_under_its_digest(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"doc_id": "a", "text": "water"}\n')
    source = DocumentSource("corpus", str(corpus), corpus_digest(corpus, Storage()))
    assert source.open(Storage()).texts(["a", "b"]) == ["water", None]
    corpus.unlink()
    assert source.open(Storage()).count() == 1, "the machine has it already"
