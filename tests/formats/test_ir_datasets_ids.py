"""`ir_datasets:ID` in place of a file; without the optional package, an error that says what to install."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import pytest

from lancer.errors import InputError, SetupError
from lancer.formats.qrels import Qrel, read_qrels
from lancer.formats.requests import Request, read_requests

INSTALLED = importlib.util.find_spec("ir_datasets") is not None


@pytest.mark.skipif(INSTALLED, reason="ir_datasets is installed")
def test_missing_package() -> None:
    for read in (read_requests, read_qrels):
        with pytest.raises(SetupError, match=r"pip install 'lancer\[datasets\]'"):
            read("ir_datasets:vaswani")


@pytest.mark.skipif(not INSTALLED, reason="ir_datasets is not installed")
class TestInstalled:
    @pytest.fixture
    def dataset(self, tmp_path: Path) -> str:
        """A data set of one's own, as the package makes it from files."""
        ir_datasets = importlib.import_module("ir_datasets")
        (tmp_path / "queries.tsv").write_text("1\t first \n2\tsecond\n")
        (tmp_path / "qrels").write_text("1 0 a 2\n1 0 b -1\n2 0 a 0\n")
        name = f"lancer-test-{tmp_path.name}"
        made = ir_datasets.create_dataset(queries_tsv=tmp_path / "queries.tsv", qrels_trec=tmp_path / "qrels")
        ir_datasets.registry.register(name, made)
        return f"ir_datasets:{name}"

    def test_requests_and_judgments(self, dataset: str) -> None:
        assert read_requests(dataset) == [Request("1", "first"), Request("2", "second")]
        assert read_qrels(dataset) == [Qrel("1", "0", "a", 2), Qrel("2", "0", "a", 0)]

    def test_no_such_id(self) -> None:
        with pytest.raises(InputError, match="ir_datasets:no/such: no such ir_datasets id"):
            read_requests("ir_datasets:no/such")

    def test_a_data_set_without_queries(self) -> None:
        for read, what in ((read_requests, "queries"), (read_qrels, "judgments")):
            with pytest.raises(InputError, match=f"ir_datasets:antique: this data set has no {what}"):
                read("ir_datasets:antique")
