"""The document store: what it gives back, what it refuses, and when it is built."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lancer.engines.documents import DocumentStore, build_store, build_store_from, corpus_digest
from lancer.errors import InputError, SetupError
from lancer.formats.corpora import Document, Located
from lancer.storage import Storage, StorageConfig
from tests.s3_servers import S3Server

STORAGE = Storage()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    monkeypatch.setenv("LANCER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def corpus(folder: Path, *documents: Mapping[str, object], name: str = "corpus.jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    return file


def store_of(path: Path) -> DocumentStore:
    return DocumentStore(build_store(path, STORAGE, corpus_digest(path, STORAGE)))


def test_a_sample_has_each_document_once_and_is_the_same_every_time(tmp_path: Path) -> None:
    documents = [{"id": f"d{i}", "text": f"text {i}"} for i in range(50)]
    store = store_of(corpus(tmp_path, *documents, documents[7]))
    drawn = store.sample(20, seed=3)
    assert len(set(drawn)) == 20
    assert store.sample(20, seed=3) == drawn
    assert set(store.sample(20, seed=4)) != set(drawn)
    assert sorted(store.sample(99, seed=3)) == sorted(d["id"] for d in documents)


def test_texts_join_title_and_body_and_are_none_where_there_is_nothing(tmp_path: Path) -> None:
    store = store_of(
        corpus(
            tmp_path,
            {"id": "both", "title": "Tides", "text": "The moon pulls.\nTwice a day."},
            {"id": "body", "text": "No title."},
            {"id": "title", "title": "Only a title", "text": ""},
            {"id": "empty", "title": " ", "text": ""},
            {"id": "ünï-😀", "text": "Größe 東京 😀"},
        )
    )
    ids = ["body", "unknown", "both", "empty", "title", "ünï-😀", "body"]
    assert store.texts(ids) == [
        "No title.",
        None,
        "Tides\nThe moon pulls.\nTwice a day.",
        None,
        "Only a title",
        "Größe 東京 😀",
        "No title.",
    ]
    assert store.texts([]) == []
    assert store.count() == 5
    assert list(store.items()) == [
        ("body", "No title."),
        ("both", "Tides\nThe moon pulls.\nTwice a day."),
        ("title", "Only a title"),
        ("ünï-😀", "Größe 東京 😀"),
    ]


def test_membership_tells_unknown_ids_from_empty_documents(tmp_path: Path) -> None:
    store = store_of(corpus(tmp_path, {"id": "a", "text": "x"}, {"id": "empty", "text": ""}))
    assert "a" in store
    assert "empty" in store
    assert "A" not in store  # ids are case-sensitive
    assert store.missing(["z", "a", "empty", "q", "z"]) == ["z", "q"]
    assert store.missing(f"n{i}" for i in range(40_000)) == [f"n{i}" for i in range(40_000)]


def test_exact_repeat_is_counted_once_kept(tmp_path: Path) -> None:
    store = store_of(
        corpus(tmp_path, {"id": "a", "title": "T", "text": "x"}, {"docid": "a", "title": "T", "body": "x"})
    )
    assert (store.count(), store.repeated) == (1, 1)


def test_repeat_with_other_content_names_both_places_and_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "corpus"
    first = corpus(folder, {"id": "a", "text": "x"}, {"id": "b", "text": "y"}, name="one.jsonl")
    second = corpus(
        folder, {"id": "c", "text": "z"}, {"id": "d", "text": "w"}, {"id": "b", "text": "Y"}, name="two.jsonl"
    )
    with pytest.raises(InputError) as caught:
        store_of(folder)
    assert str(caught.value) == f"{second}:3: document 'b' is here with other content than at {first}:2"
    assert not list(cache.rglob("*.sqlite"))


def test_a_title_alone_makes_a_repeat_differ(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="other content"):
        store_of(corpus(tmp_path, {"id": "a", "text": "x"}, {"id": "a", "title": "T", "text": "x"}))


def test_empty_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no document"):
        store_of(corpus(tmp_path))
    with pytest.raises(InputError, match="no document at all"):
        build_store_from([], "0" * 64)


def test_a_store_is_built_once_per_digest(tmp_path: Path, cache: Path) -> None:
    reads = 0

    def documents() -> Iterator[Located]:
        nonlocal reads
        reads += 1
        yield Located(Document("a", None, "from a request"), "requests.jsonl", 1)

    first, second = build_store_from(documents(), "ab" * 32), build_store_from(documents(), "ab" * 32)
    assert first == second == cache / "corpora" / ("ab" * 8) / "documents.sqlite"
    assert reads == 1
    assert DocumentStore(first).texts(["a"]) == ["from a request"]


def test_digest_follows_names_and_content_not_the_place(tmp_path: Path) -> None:
    one = corpus(tmp_path / "one", {"id": "a", "text": "x"}, name="part-0.jsonl")
    (tmp_path / "one" / "sub").mkdir()
    shutil.copy(one, tmp_path / "one" / "sub" / "part-1.jsonl")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    digest = corpus_digest(tmp_path / "one", STORAGE)
    assert len(digest) == 64
    assert corpus_digest(f"{tmp_path}/two/", STORAGE) == digest
    (tmp_path / "two" / "README.md").write_text("not a corpus file")
    assert corpus_digest(tmp_path / "two", STORAGE) == digest
    (tmp_path / "two" / "part-0.jsonl").write_text('{"id": "a", "text": "y"}\n')
    changed = corpus_digest(tmp_path / "two", STORAGE)
    (tmp_path / "one" / "part-0.jsonl").rename(tmp_path / "one" / "part-9.jsonl")
    assert len({digest, changed, corpus_digest(tmp_path / "one", STORAGE)}) == 3


@pytest.mark.s3
@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_a_corpus_on_an_object_store_is_the_same_corpus(tmp_path: Path, s3_server: S3Server) -> None:
    file = tmp_path / "corpus" / "docs.jsonl.gz"
    file.parent.mkdir()
    file.write_bytes(gzip.compress(b'{"id": "a", "text": "x"}\n' * 2, mtime=0))
    bucket = s3_server.create_bucket()
    s3_server.client().upload_file(str(file), bucket, "data/docs.jsonl.gz")
    storage = Storage(StorageConfig(endpoint_override=s3_server.endpoint))
    digest = corpus_digest(f"s3://{bucket}/data", storage)
    assert digest == corpus_digest(file.parent, STORAGE) == corpus_digest(file, STORAGE)
    store = DocumentStore(build_store(f"s3://{bucket}/data", storage, digest))
    assert (store.texts(["a"]), store.repeated) == (["x"], 1)


def test_a_store_serves_threads_and_other_processes(tmp_path: Path) -> None:
    store = store_of(corpus(tmp_path, *({"id": f"d{i}", "text": f"text {i}"} for i in range(500))))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda i: store.texts([f"d{i}", f"d{i + 1}"]), range(499)))
    assert answers == [[f"text {i}", f"text {i + 1}"] for i in range(499)]
    script = "import pickle, sys; print(pickle.load(sys.stdin.buffer).texts(['d7'])[0])"
    done = subprocess.run([sys.executable, "-c", script], input=pickle.dumps(store), capture_output=True, check=True)
    assert done.stdout == b"text 7\n"


def test_a_damaged_or_missing_store_says_what_to_do(tmp_path: Path) -> None:
    damaged = tmp_path / "documents.sqlite"
    damaged.write_bytes(b"not a database" * 100)
    for path in (damaged, tmp_path / "absent.sqlite"):
        with pytest.raises(SetupError, match="remove its folder"):
            DocumentStore(path)
