"""BEIR folders, as published and as flat files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lancer.errors import InputError
from lancer.formats.beir import BeirFolder, beir_folder


def test_the_published_layout(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "qrels/README.md"):
        (tmp_path / name).touch()
    assert beir_folder(f"{tmp_path}/") == BeirFolder(
        str(tmp_path / "corpus.jsonl"), str(tmp_path / "queries.jsonl"), {"test": str(tmp_path / "qrels" / "test.tsv")}
    )


def test_a_folder_without_queries(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").touch()
    with pytest.raises(InputError, match=r"no BEIR folder: queries\.jsonl"):
        beir_folder(tmp_path)


@pytest.mark.shared
def test_nfcorpus(shared_data: Path) -> None:
    folder = beir_folder(shared_data / "nfcorpus")
    assert folder.corpus.endswith("corpus.jsonl.gz")
    assert sorted(folder.qrels) == ["dev", "test", "train"]
