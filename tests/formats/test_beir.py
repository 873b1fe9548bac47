"""BEIR folders, as published and as flat files, in place of a file."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lancer.errors import InputError
from lancer.formats.beir import BeirFolder, beir_folder
from lancer.formats.corpora import corpus_files, read_corpus
from lancer.formats.qrels import Qrel, read_qrels
from lancer.formats.requests import Request, read_requests


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The published layout, one split."""
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d1", "title": "T", "text": "body", "metadata": {}}\n')
    (tmp_path / "queries.jsonl.gz").write_bytes(gzip.compress(b'{"_id": "q1", "text": "what", "metadata": {}}\n'))
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    (tmp_path / "qrels" / "README.md").touch()
    return tmp_path


def test_the_published_layout(folder: Path) -> None:
    assert beir_folder(f"{folder}/") == BeirFolder(
        str(folder / "corpus.jsonl"), str(folder / "queries.jsonl.gz"), {"test": str(folder / "qrels" / "test.tsv")}
    )


def test_each_reader_finds_its_part(folder: Path) -> None:
    assert [located.document.doc_id for located in read_corpus(folder)] == ["d1"]
    assert read_requests(folder) == [Request("q1", "what")]
    assert read_qrels(folder) == [Qrel("q1", "0", "d1", 1)]


def test_of_several_splits_one_must_be_named(folder: Path) -> None:
    (folder / "qrels" / "dev.tsv").touch()
    with pytest.raises(InputError, match=r"several qrels; give one of them: .*dev\.tsv, .*test\.tsv"):
        read_qrels(folder)
    for split in ("dev", "test"):
        (folder / "qrels" / f"{split}.tsv").unlink()
    with pytest.raises(InputError, match="a BEIR folder with no qrels"):
        read_qrels(folder)


def test_another_folder(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").touch()
    assert beir_folder(tmp_path) is None
    assert corpus_files(tmp_path) == [str(tmp_path / "corpus.jsonl")]
    for read in (read_requests, read_qrels):
        with pytest.raises(InputError, match="Is a directory"):
            read(tmp_path)


@pytest.mark.shared
def test_nfcorpus(shared_data: Path) -> None:
    folder = beir_folder(shared_data / "nfcorpus")
    assert folder is not None
    assert folder.corpus.endswith("corpus.jsonl.gz")
    assert sorted(folder.qrels) == ["dev", "test", "train"]
    assert len(read_requests(shared_data / "nfcorpus")) == 3237
