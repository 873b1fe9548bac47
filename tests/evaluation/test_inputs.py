"""Run files and folders, several qrels, rating matrices."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lancer.errors import InputError, UsageError
from lancer.evaluation.inputs import read_all_qrels, read_rating_qrels, read_runs
from lancer.formats.qrels import Qrel
from lancer.formats.runs import read_run
from lancer.schema import COVERAGE_SCHEMA


def write(path: Path, *lines: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


class TestRuns:
    def test_a_run_is_named_by_its_tag(self, tmp_path: Path) -> None:
        first = write(tmp_path / "a.txt", "q Q0 d 1 1.0 bm25")
        second = write(tmp_path / "b.txt", "q Q0 d 1 1.0 bm25:max")
        assert {name: path for name, (path, _) in read_runs([first, second]).items()} == {
            "bm25": first,
            "bm25:max": second,
        }

    def test_runs_that_share_a_tag_are_named_by_their_paths(self, tmp_path: Path) -> None:
        paths = [write(tmp_path / name, "q Q0 d 1 1.0 same") for name in ("a", "b")]
        other = write(tmp_path / "c", "q Q0 d 1 1.0 other")
        assert list(read_runs([*paths, other])) == [*paths, "other"]

    def test_a_folder_stands_for_its_runs_first_stage_first(self, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        write(folder / "run.trec", "q Q0 d 1 1.0 bm25:max")
        write(folder / "run.sum(tau=1).trec", "q Q0 d 1 1.0 bm25:sum(tau=1)")
        write(folder / "first_stage.trec", "q Q0 d 1 1.0 bm25")
        write(folder / "run.json", "{}")
        write(folder / "cache" / "old.trec", "q Q0 d 1 1.0 old")
        (folder / "more.run.gz").write_bytes(gzip.compress(b"q Q0 d 1 1.0 more\n"))
        assert list(read_runs([f"{folder}/"])) == ["bm25", "more", "bm25:sum(tau=1)", "bm25:max"]

    def test_what_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no such file or folder"):
            read_runs([str(tmp_path / "absent")])
        write(tmp_path / "notes.txt", "x")
        with pytest.raises(InputError, match="is a folder without a run file"):
            read_runs([str(tmp_path)])

    def test_the_same_run_twice(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.trec", "q Q0 d 1 1.0 bm25")
        with pytest.raises(UsageError, match="is given twice"):
            read_runs([path, str(tmp_path)])


class TestQrels:
    def test_files_are_taken_together(self, tmp_path: Path) -> None:
        paths = [write(tmp_path / "a", "q1 0 d 1", "q1 0 e 0"), write(tmp_path / "b", "q2 0 d 1", "q1 0 d 1")]
        assert read_all_qrels(paths) == [Qrel("q1", "0", "d", 1), Qrel("q1", "0", "e", 0), Qrel("q2", "0", "d", 1)]

    def test_files_that_disagree_are_an_error(self, tmp_path: Path) -> None:
        paths = [write(tmp_path / "a", "q1 0 d 1"), write(tmp_path / "b", "q1 0 d 2")]
        with pytest.raises(InputError, match="document 'd': grade 2 here, 1 in ") as caught:
            read_all_qrels(paths)
        assert caught.value.file == paths[1]


EXPECTED = [Qrel("q", "s1", "d1", 4), Qrel("q", "s2", "d1", -1), Qrel("q", "s1", "d2", 0), Qrel("q", "s2", "d2", 5)]


class TestRatings:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A run folder with its coverage table in two parts."""
        rows = [
            {
                "query_id": q, "doc_id": d, "first_stage_rank": 1, "sub_question_id": s, "sub_question": "?",
                "rating": None if grade < 0 else grade, "probability": None, "status": "ok", "raw": "",
            }
            for q, s, d, grade in EXPECTED
        ]  # fmt: skip
        (tmp_path / "coverage.parquet").mkdir()
        for number, part in enumerate((rows[:1], rows[1:])):
            table = pa.Table.from_pylist(part, schema=COVERAGE_SCHEMA)
            pq.write_table(table, tmp_path / "coverage.parquet" / f"{number}.parquet")
        pq.write_table(pa.table({"query_id": ["q"]}), tmp_path / "ledger.parquet")
        return tmp_path

    def test_of_a_run_folder(self, folder: Path) -> None:
        assert read_rating_qrels(str(folder)) == EXPECTED
        assert read_rating_qrels(str(folder / "coverage.parquet")) == EXPECTED
        assert read_rating_qrels(str(folder / "coverage.parquet" / "0.parquet")) == EXPECTED[:1]

    def test_positional_ones_belong_to_their_run(self, tmp_path: Path) -> None:
        run = write(tmp_path / "run", "q Q0 d1 1 2.0 bm25", "q Q0 d2 2 1.0 bm25")
        ratings = write(tmp_path / "ratings.json", '{"q": [[4, -1], [0, 5]]}')
        found = [Qrel(q, s.replace("s", ""), d, grade) for q, s, d, grade in EXPECTED]
        assert read_rating_qrels(ratings, read_run(run)) == found

    def test_what_is_no_matrix(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="it lacks sub_question_id, doc_id, rating"):
            read_rating_qrels(str(folder / "ledger.parquet"))
        with pytest.raises(InputError, match="is no Parquet file"):
            read_rating_qrels(write(tmp_path / "x.parquet", "not parquet"))
        with pytest.raises(InputError, match="no such file, nor a folder"):
            read_rating_qrels(str(tmp_path / "absent"))
