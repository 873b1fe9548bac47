"""`lancer select`: from a stored matrix to run files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lancer.cli import main
from lancer.errors import InputError, OutputError, PlanError, UsageError
from lancer.formats.runs import read_run
from lancer.pipeline.reselect import reselect
from tests.coverage_tables import write_coverage, write_ranking


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A run folder: c and b answer one sub-question each, a the same as c; q2 has no sub-question."""
    cells = [
        (d, rank, q, p)
        for rank, (d, row) in enumerate((("a", (0.4, 0)), ("b", (0, 0.6)), ("c", (0.9, 0))), 1)
        for q, p in zip("12", row, strict=True)
    ]
    write_coverage(tmp_path / "run" / "coverage.parquet" / "part-0.parquet", "q1", cells)
    write_ranking(tmp_path / "run" / "ranking.parquet" / "part-0.parquet", "q1", "abc")
    write_coverage(tmp_path / "run" / "coverage.parquet" / "part-1.parquet", "q2", [])
    write_ranking(tmp_path / "run" / "ranking.parquet" / "part-1.parquet", "q2", "fe")
    (tmp_path / "run" / "run.json").write_text('{"queries": 2}')
    return str(tmp_path / "run")


def orders(path: str | Path) -> dict[str, str]:
    return {q: "".join(d for d, _ in ranking) for q, ranking in read_run(path).rankings.items()}


def test_a_run_folder_gives_new_rankings(run: str, tmp_path: Path) -> None:
    result = reselect(run, ["greedy-coverage(tau=0.3)", "sum(tau=0)"], str(tmp_path / "new"))
    assert result.files == {
        "greedy-coverage(tau=0.3)": f"{tmp_path}/new/greedy-coverage(tau=0.3).trec",
        "sum(tau=0)": f"{tmp_path}/new/sum(tau=0).trec",
    }
    assert (result.queries, result.missing, result.notes) == (2, 0, [])
    assert orders(result.files["greedy-coverage(tau=0.3)"]) == {"q1": "abc", "q2": "fe"}
    assert orders(result.files["sum(tau=0)"]) == {"q1": "cba", "q2": "fe"}
    assert read_run(result.files["sum(tau=0)"]).tag == "matrix:sum(tau=0)"


def test_a_first_stage_and_a_second_order(run: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first.run", tmp_path / "second.run"
    first.write_text("".join(f"q1 Q0 {d} {r} {9 - r} dense\n" for r, d in enumerate("acx", 1)))
    second.write_text("".join(f"q1 Q0 {d} {r} {9 - r} other\n" for r, d in enumerate("xca", 1)))
    spec = "greedy-coverage(tau=0.3,ties=second,rest=second)"
    result = reselect(run, [spec], str(tmp_path / "x.trec"), run=str(first), second_order=str(second))
    assert orders(tmp_path / "x.trec") == {"q1": "cxa"}
    assert read_run(tmp_path / "x.trec").tag == f"dense:{spec}"
    assert result.notes == [
        "documents of the run without values, counted 0: 1",
        "documents with values that the run lacks, left out: 1",
        "queries with a matrix that the run lacks, left out: 1",
    ]
    assert result.missing == 2


def test_a_budget_takes_token_counts(run: str, tmp_path: Path) -> None:
    counts = tmp_path / "counts.tsv"
    counts.write_text("".join(f"{d}\t{n}\n" for d, n in zip("abcef", (10, 20, 90, 1, 1), strict=True)))
    reselect(run, ["greedy-coverage(tau=0.3,budget=30)"], str(tmp_path / "x.trec"), token_counts=str(counts))
    assert orders(tmp_path / "x.trec")["q1"][:2] == "ab", "c alone would not leave room for b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 10\n", r"counts.tsv:1: found 'a 10'; doc_id<TAB>count is expected"),
        ("a\t1\nb\t-1\n", r"counts.tsv:2: found 'b\\t-1'"),
        ("a\t1.5\n", r"counts.tsv:1: found 'a\\t1.5'"),
        ("a\t99999999999999999999\n", r"counts.tsv:1: found "),
        ("a\t1\na\t2\n", r"counts.tsv:2: document 'a' has another count on an earlier line"),
        ("a\t1\n", r"query 'q1': document 'b' has no token count"),
    ],
)
def test_bad_token_counts_are_named(run: str, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "counts.tsv").write_text(text)
    with pytest.raises(InputError, match=message):
        reselect(run, ["greedy-sum(budget=9)"], str(tmp_path / "x.trec"), token_counts=str(tmp_path / "counts.tsv"))


def test_the_tag_says_what_the_run_did(run: str, tmp_path: Path) -> None:
    Path(run, "first_stage.trec").write_text("q1 Q0 a 1 3.0 bm25\n")
    reselect(run, ["sum(tau=0)"], str(tmp_path / "x.trec"))
    assert read_run(tmp_path / "x.trec").tag == "bm25:estimate:sum(tau=0)"


def test_a_tau_that_nothing_reaches_is_told(run: str, tmp_path: Path) -> None:
    result = reselect(run, ["sum", "max"], str(tmp_path / "new"))  # the default tau, 1, is one of ratings
    assert result.notes == ["sum(tau=1) covers no sub-question of any query"]


def test_what_was_normalised_in_the_run_is_told(run: str, tmp_path: Path) -> None:
    first = tmp_path / "first.run"
    first.write_text("q1 Q0 a 1 3 t\nq1 Q0 a 2 2 t\nq2 Q0 e 1 1 t\n")
    notes = reselect(run, ["max"], str(tmp_path / "x.trec"), run=str(first)).notes
    assert f"{first}: repeated documents, best score kept: 1" in notes


def test_an_unfinished_run_is_told(run: str, tmp_path: Path) -> None:
    Path(run, "run.json").write_text('{"queries": 5}')
    result = reselect(run, ["max"], str(tmp_path / "x.trec"))
    assert result.notes == [f"{run} has 2 of the run's 5 queries: the others are unfinished or without candidates"]
    Path(run, "run.json").write_text("{")
    assert "cannot be read" in reselect(run, ["max"], str(tmp_path / "x.trec")).notes[0]


def test_nothing_is_written_when_something_is_wrong(run: str, tmp_path: Path) -> None:
    out = str(tmp_path / "x.trec")
    with pytest.raises(UsageError, match="a selector is given twice"):
        reselect(run, ["sum", "sum(tau=1)"], str(tmp_path / "new"))
    with pytest.raises(PlanError, match="tau 3 is above the maximum of the scale 'probability'"):
        reselect(run, ["sum(tau=0)", "sum(tau=3)"], str(tmp_path / "new"))
    with pytest.raises(PlanError, match="needs second_order"):
        reselect(run, ["greedy-sum(ties=second)"], out)
    with pytest.raises(OutputError, match="it is a folder, and a file is needed"):
        reselect(run, ["max"], run)
    with pytest.raises(OutputError, match="it is a folder, and a file is needed"):
        reselect(run, ["max"], out, explain=run)
    with pytest.raises(OutputError, match=r"run\.json: Not a directory"):
        reselect(run, ["max"], f"{run}/run.json/x.trec")
    assert not (tmp_path / "x.trec").exists()
    assert not (tmp_path / "new").exists()


@pytest.mark.shared
@pytest.mark.parametrize("first_stage", ["lsr", "qwen3-embed-8b"])
def test_the_published_oracle_runs_of_lancer(shared_data: Path, tmp_path: Path, first_stage: str) -> None:
    """Both first stages together: 100 of 100 topics equal."""
    data = shared_data / "lancer-duc04"
    first = data / "data" / "crux-mds-duc04-runs" / f"{first_stage}-crux-mds-duc04.run"
    ratings = data / "results" / "crux-mds-duc04-ratings" / f"ratings.oracle.{first_stage}.json"
    mine = tmp_path / "mine.trec"
    arguments = ["--matrix", str(ratings), "--run", str(first), "--selector", "sum(tau=1)", "--output", str(mine)]
    assert main(["select", *arguments, "--explain", str(tmp_path / "why.jsonl")]) == 0
    published = data / "results" / "crux-mds-duc04-runs" / f"{first_stage}-crux-mds-duc04__lancer__oracle__agg_sum.run"
    theirs = {q: [d for d, _ in ranking] for q, ranking in read_run(published).rankings.items()}
    assert {q: [d for d, _ in ranking] for q, ranking in read_run(mine).rankings.items()} == theirs
    assert len(theirs) == 50
    reasons = [json.loads(line) for line in (tmp_path / "why.jsonl").read_text().splitlines()]
    assert {r["query_id"] for r in reasons} == theirs.keys()
    for reason in reasons:
        answered = [q for document in reason["chosen"] for q in document["covers"]]
        assert len(answered) == len(set(answered))
        assert not set(answered) & set(reason["uncovered"])
