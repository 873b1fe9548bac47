"""Run files and folders, several qrels, rating matrices."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from lancer.errors import InputError, UsageError
from lancer.evaluation.inputs import baseline_file, read_all_qrels, read_rated_pairs, read_runs
from lancer.evaluation.rated import RatedPairs
from lancer.formats.qrels import Qrel
from lancer.formats.runs import read_run
from lancer.schema import Scale
from lancer.storage import Storage


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


class TestBaseline:
    def test_a_folder_stands_for_its_result(self, tmp_path: Path) -> None:
        for name in ("first_stage", "run", "run.max"):
            write(tmp_path / f"{name}.trec", "q Q0 d 1 1.0 bm25")
        assert baseline_file(f"{tmp_path}/", Storage()) == str(tmp_path / "run.trec")
        assert baseline_file(str(tmp_path / "first_stage.trec"), Storage()) == str(tmp_path / "first_stage.trec")

    def test_or_for_the_only_run_in_it(self, tmp_path: Path) -> None:
        only = write(tmp_path / "bm25.run", "q Q0 d 1 1.0 bm25")
        assert baseline_file(str(tmp_path), Storage()) == only
        write(tmp_path / "des.run", "q Q0 d 1 1.0 des")
        with pytest.raises(UsageError, match=r"several runs; give one of them: .*bm25\.run, .*des\.run"):
            baseline_file(str(tmp_path), Storage())

    def test_nothing_there(self, tmp_path: Path) -> None:
        assert baseline_file(str(tmp_path / "absent"), Storage()) is None


def test_rated_pairs_of_a_positional_file_belong_to_their_run(tmp_path: Path) -> None:
    run = write(tmp_path / "run", "q Q0 d1 1 2.0 bm25", "q Q0 d2 2 1.0 bm25")
    ratings = write(tmp_path / "ratings.json", '{"q": [[4, -1], [0, 5]]}')
    pairs = read_rated_pairs(ratings, read_run(run))
    assert pairs == RatedPairs({"q": {"1": {"d1": 4, "d2": 0}, "2": {"d2": 5}}}, Scale.rating, missing=1)
