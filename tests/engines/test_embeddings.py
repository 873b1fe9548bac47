"""Embeddings of a corpus: made once, in parts that are shared, resumed and checked, on a disk and on S3."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from lancer.engines.documents import DocumentStore, build_store, corpus_digest
from lancer.engines.embeddings import CorpusEmbeddings, Shelf, corpus_embeddings
from lancer.storage import Storage, StorageConfig
from tests.s3_servers import S3Server

TEXTS = {f"d{i:02}": f"document {i}" for i in range(22)} | {"empty": "", "ünï": "the last one"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LANCER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def documents(tmp_path: Path) -> DocumentStore:
    file = tmp_path / "corpus.jsonl"
    rows = [{"id": doc_id, "text": text} for doc_id, text in reversed(TEXTS.items())]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return DocumentStore(build_store(file, Storage(), corpus_digest(file, Storage())))


def vector(text: str) -> npt.NDArray[np.float32]:
    own = np.random.default_rng(list(text.encode())).normal(size=16)
    return (own / np.linalg.norm(own)).astype(np.float32)


class Encoder:
    """Notes what it is asked; `fails_at` texts it raises; its first part waits for the `others`."""

    def __init__(self, fails_at: int | None = None, others: threading.Barrier | None = None) -> None:
        self.asked: list[str] = []
        self.fails_at, self.others = fails_at, others

    def __call__(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        if self.fails_at is not None and len(self.asked) + len(texts) > self.fails_at:
            raise KeyboardInterrupt
        if self.others is not None and not self.asked:
            self.others.wait(30)
        self.asked += texts
        return np.array([vector(text) for text in texts], np.float32).reshape(-1, 16)


def check(found: CorpusEmbeddings) -> None:
    with_text = sorted((d for d in TEXTS if TEXTS[d]), key=str.encode)
    assert found.doc_ids == with_text
    np.testing.assert_array_equal(np.concatenate(found.blocks), [vector(TEXTS[d]) for d in with_text])
    for text in TEXTS.values():
        kept = found.of_text(text)
        assert kept is None if not text else np.array_equal(kept, vector(text))  # type: ignore[arg-type]
    assert found.of_text("document 3 ") is None
    best = found.search(vector("document 7"), 3)
    assert best[0].doc_id == "d07"
    assert best[0].score == pytest.approx(1, abs=1e-6)
    assert len(best) == 3


def test_each_document_is_encoded_once_and_then_read(tmp_path: Path, documents: DocumentStore) -> None:
    shelf = Shelf(str(tmp_path / "kept"), "key", Storage(), size=5)
    encoder = Encoder()
    check(corpus_embeddings(documents, shelf, encoder))
    assert sorted(encoder.asked) == sorted(text for text in TEXTS.values() if text)
    assert len(list((tmp_path / "kept" / "key").glob("part-*.parquet"))) == 5
    check(corpus_embeddings(documents, shelf, Encoder(fails_at=0)))
    other = Encoder()
    corpus_embeddings(documents, Shelf(shelf.folder, "other model", Storage(), size=5), other)
    assert len(other.asked) == 23


def test_an_interrupted_build_goes_on_where_it_was(tmp_path: Path, documents: DocumentStore) -> None:
    shelf = Shelf(str(tmp_path / "kept"), "key", Storage(), size=5)
    first, second = Encoder(fails_at=12), Encoder()
    with pytest.raises(KeyboardInterrupt):
        corpus_embeddings(documents, shelf, first)
    assert len(first.asked) >= 8
    check(corpus_embeddings(documents, shelf, second))
    assert sorted(first.asked + second.asked) == sorted(text for text in TEXTS.values() if text)


@pytest.mark.parametrize("damage", ["torn", "bit", "empty"])
def test_a_damaged_part_is_made_again(
    tmp_path: Path, documents: DocumentStore, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf(str(tmp_path / "kept"), "key", Storage(), size=5)
    corpus_embeddings(documents, shelf, Encoder())
    part = tmp_path / "kept" / "key" / "part-000002.parquet"
    whole = part.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(vector("document 11").tobytes()) + 9] ^= 1
    part.write_bytes({"torn": whole[:-20], "bit": bytes(flipped), "empty": b""}[damage])
    again = Encoder()
    check(corpus_embeddings(documents, shelf, again))
    assert again.asked == [f"document {i}" for i in range(10, 15)]
    assert f"{part} is damaged" in caplog.text
    assert part.read_bytes() == whole


def test_engines_that_start_together_share_the_work(tmp_path: Path, documents: DocumentStore) -> None:
    shelf = Shelf(str(tmp_path / "kept"), "key", Storage(), size=3)
    together = threading.Barrier(3)
    encoders = [Encoder(others=together) for _ in range(3)]
    with ThreadPoolExecutor(3) as engines:
        for found in engines.map(lambda encoder: corpus_embeddings(documents, shelf, encoder), encoders):
            check(found)
    assert sorted(t for e in encoders for t in e.asked) == sorted(text for text in TEXTS.values() if text)


@pytest.mark.s3
@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_on_an_object_store(s3_server: S3Server, documents: DocumentStore) -> None:
    storage = Storage(StorageConfig(endpoint_override=s3_server.endpoint))
    shelf = Shelf(f"s3://{s3_server.create_bucket()}/kept", "key", storage, size=5)
    check(corpus_embeddings(documents, shelf, Encoder()))
    assert len(shelf.present()) == 5
    check(corpus_embeddings(documents, shelf, Encoder(fails_at=0)))
