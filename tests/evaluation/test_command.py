"""`lancer evaluate` from paths to text."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from lancer.cli import main
from lancer.errors import InputError, UsageError
from lancer.evaluation.command import evaluate_command, evaluate_nuggets_command
from tests.coverage_tables import write_coverage, write_ranking


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Eight queries with two sub-questions, answered by documents a and b; `first` finds a, `second` both."""
    texts = {
        "first": [f"q{n} Q0 {d} {r} {9 - r} bm25" for n in range(8) for r, d in enumerate("axb", 1)],
        "second": [f"q{n} Q0 {d} {r} {9 - r} bm25:max" for n in range(8) for r, d in enumerate("abx", 1)],
        "qrels": [line for n in range(8) for line in (f"q{n} 1 a 4", f"q{n} 2 b 4", f"q{n} 1 x 0")],
    }
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    return {name: str(tmp_path / name) for name in texts}


def as_json(files: dict[str, str], measures: str = "StRecall@2", **options: object) -> dict[str, dict[str, object]]:
    text = evaluate_command([files["first"], files["second"]], [files["qrels"]], measures, output="json", **options)  # type: ignore[arg-type]
    found: dict[str, dict[str, object]] = json.loads(text)
    return found


def test_table(files: dict[str, str]) -> None:
    text = evaluate_command([files["first"], files["second"]], [files["qrels"]], "StRecall@2 Judged@2")
    rows = [line.split()[:3] for line in text.splitlines()]
    assert ["StRecall@2", "bm25", "0.5000"] in rows
    assert ["StRecall@2", "bm25:max", "1.0000"] in rows


@pytest.mark.parametrize("baseline", ["bm25", "first"])
def test_the_baseline_is_named_by_tag_or_path(files: dict[str, str], baseline: str) -> None:
    found = as_json(files, baseline=files.get(baseline, baseline))
    assert found["comparison"] == {"baseline": "bm25", "test": "randomisation", "correction": "holm"}
    entry = found["runs"]["bm25:max"]["measures"]["StRecall@2"]  # type: ignore[index]
    assert (entry["difference"], entry["p"]) == (0.5, 2 / 256)


def test_a_run_folder_is_a_baseline(files: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    for name, source in (("first_stage.trec", "second"), ("run.trec", "first")):
        (folder / name).write_text(Path(files[source]).read_text().replace("bm25", "old"))
    found = as_json(files, baseline=str(folder))
    assert found["comparison"]["baseline"] == "old"
    text = evaluate_command([str(folder)], [files["qrels"]], "StRecall@2", output="json", baseline=str(folder))
    found = json.loads(text)
    assert found["comparison"]["baseline"] == "old"
    assert list(found["runs"]) == ["old:max", "old"]


def test_a_baseline_that_is_not_among_the_runs_is_evaluated_too(files: dict[str, str]) -> None:
    text = evaluate_command(
        [files["second"]],
        [files["qrels"]],
        "StRecall@2",
        output="json",
        baseline=files["first"],
        test="t",
        correction="bh",
    )
    found = json.loads(text)
    assert list(found["runs"]) == ["bm25:max", "bm25"]
    assert found["comparison"] == {"baseline": "bm25", "test": "t", "correction": "bh"}


def test_what_was_normalised_in_reading_is_said(files: dict[str, str]) -> None:
    path = Path(files["first"])
    path.write_text(path.read_text() + "q0 Q0 a 7 0.5 bm25\n")
    text = evaluate_command([files["first"]], [files["qrels"]], "StRecall@2")
    assert "Note: repeated documents, best score kept: 1." in text
    assert "Note: queries whose lines are not together: 1." in text


def test_csv_has_its_notes_in_the_log(files: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        text = evaluate_command([files["first"]], [files["qrels"]], "P@2", output="csv")
    assert text.splitlines()[1].startswith("bm25,P@2,8,0.5,")
    assert "bm25: the grade of a document is its highest over the sub-topics, for P@2" in caplog.messages


def test_ratings_beside_the_qrels(files: dict[str, str], tmp_path: Path) -> None:
    ratings = tmp_path / "ratings.json"
    ratings.write_text(json.dumps({f"q{n}": [[3, 0, 0], [0, 0, 0], [0, 5, 0]] for n in range(8)}))
    found = as_json(files, "Cov@2 Cov(of=all)@3", ratings=str(ratings), ratings_run=files["first"])
    means = {
        name: {measure: entry["mean"] for measure, entry in run["measures"].items()}  # type: ignore[index]
        for name, run in found["runs"].items()
    }
    assert means["bm25"] == pytest.approx({"Cov@2": 0.5, "Cov(of='all')@3": 2 / 3})
    assert means["bm25:max"] == pytest.approx({"Cov@2": 1.0, "Cov(of='all')@3": 2 / 3})
    notes = found["runs"]["bm25"]["notes"]  # type: ignore[index]
    assert f"{ratings} has no document ids: row i is taken for document i of {files['first']}" in notes


def test_the_probabilities_of_a_run_folder(files: dict[str, str], tmp_path: Path) -> None:
    cells = [("a", 1, "1", 0.75), ("a", 1, "2", 0.25), ("b", 2, "2", 0.5)]
    for n in range(7):
        write_coverage(tmp_path / "run" / "coverage.parquet" / f"{n}.parquet", f"q{n}", cells)
        write_ranking(tmp_path / "run" / "ranking.parquet" / f"{n}.parquet", f"q{n}", ["a", "b"])
    write_coverage(tmp_path / "run" / "coverage.parquet" / "7.parquet", "q7", [])
    write_ranking(tmp_path / "run" / "ranking.parquet" / "7.parquet", "q7", ["b", "a"])
    options = {"output": "json", "ratings": str(tmp_path / "run")}
    text = evaluate_command([files["first"]], [], "Cov(tau=0.5)@1 Cov(tau=0.5)@3", **options)  # type: ignore[arg-type]
    entry = json.loads(text)["runs"]["bm25"]
    assert {name: of["mean"] for name, of in entry["measures"].items()} == {
        "Cov(tau=0.5)@1": 7 / 16,
        "Cov(tau=0.5)@3": 7 / 8,
    }
    assert "queries without ratings, Cov counted 0: 1 (q7)" in entry["notes"]
    with pytest.raises(UsageError, match=r"for example Cov\(tau=0.5\)@10"):
        evaluate_command([files["first"]], [], "Cov@10", **options)  # type: ignore[arg-type]


def test_ratings_without_qrels(files: dict[str, str], tmp_path: Path) -> None:
    ratings = tmp_path / "ratings.jsonl"
    cells = [{"query_id": f"q{n}", "doc_id": "a", "sub_question_id": "1", "rating": 4} for n in range(8)]
    ratings.write_text("\n".join(map(json.dumps, cells)))
    text = evaluate_command([files["first"]], [], "Cov@2 Judged@2", output="json", ratings=str(ratings))
    measures = json.loads(text)["runs"]["bm25"]["measures"]
    assert (measures["Cov@2"]["mean"], measures["Judged@2"]["mean"]) == (1.0, 0.5)
    with pytest.raises(UsageError, match="neither qrels nor ratings"):
        evaluate_command([files["first"]], [], "Cov@2")


@pytest.mark.parametrize(
    ("measures", "label"),
    [
        ("Cov(tau=4,of=all)@10", "mean Cov(tau=4, of=all)@k"),
        ("StRecall(rel=2)@2", "mean Cov(tau=2, of=answerable)@k"),
        ("nDCG@10", "mean Cov(tau=3, of=answerable)@k"),
    ],
)
def test_plot_of_graded_qrels(files: dict[str, str], tmp_path: Path, measures: str, label: str) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plots" / "curve.svg"
    evaluate_command([files["first"], files["second"]], [files["qrels"]], measures, plot=str(plot))
    image = plot.read_text()
    assert label in image
    assert "bm25:max" in image


def test_plot_of_what_no_default_reaches(files: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    Path(files["qrels"]).write_text("q0 0 a 1\n")
    evaluate_command([files["first"]], [files["qrels"]], "nDCG@10", plot=str(tmp_path / "a.svg"))
    assert "mean Cov(tau=1, of=answerable)@k" in (tmp_path / "a.svg").read_text()
    write_coverage(tmp_path / "coverage.parquet" / "0.parquet", "q0", [("a", 1, "1", 0.75)])
    options = {"ratings": str(tmp_path), "plot": str(tmp_path / "b.svg")}
    evaluate_command([files["first"]], [], "Judged@10", **options)  # type: ignore[arg-type]
    assert "mean Cov(tau=0.5, of=answerable)@k" in (tmp_path / "b.svg").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measures": "ndcg@10"}, "did you mean 'nDCG@10'?"),
        ({"output": "tex"}, "output 'tex' does not exist"),
        ({"ties": "trec"}, "ties 'trec' does not exist; did you mean 'trec_eval'?"),
        ({"test": "wilcoxon", "baseline": "bm25"}, "test 'wilcoxon' does not exist"),
        ({"correction": "none", "baseline": "bm25"}, "correction 'none' does not exist"),
        ({"test": "t"}, "need a baseline"),
        ({"plot": "curve.pdf"}, "allowed endings"),
        ({"ratings_run": "run.trec"}, "but no ratings"),
    ],
)
def test_usage_errors_come_before_any_reading(options: dict[str, str], message: str) -> None:
    given = {"measures": "nDCG@10"} | options
    with pytest.raises(UsageError) as caught:
        evaluate_command(["absent.run"], ["absent.qrels"], **given)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_a_baseline_that_does_not_exist(files: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"neither one of the runs nor a run file; did you mean 'bm25'\?"):
        as_json(files, baseline="bm52")


def test_missing_files_are_input_errors(files: dict[str, str]) -> None:
    with pytest.raises(InputError, match="no such file"):
        evaluate_command([files["first"]], [files["first"] + ".qrels"], "nDCG@10")


def test_nuggets_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "answers.jsonl"
    nuggets = {"q1": "okay", "q2": "vital"}
    rows = [
        {"qid": q, "nuggets": [{"text": "f", "importance": i, "assignment": "support"}]} for q, i in nuggets.items()
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    for options, mean in (([], 0.5), (["--without-vital", "skip"], 1.0)):
        assert main(["evaluate", "--assignments", str(path), "--output", "json", *options]) == 0
        found = json.loads(capsys.readouterr().out)["runs"][str(path)]["measures"]
        assert found["vital_score"]["mean"] == mean


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "evaluate needs --run, --stages or --assignments"),
        (["--stages", "a", "--run", "b", "--per-query"], "by themselves, without --run, --per-query"),
        (["--stages", "a"], "no qrels are given"),
        (["--run", "a", "--kept", "3"], "--kept and --rel are about --stages"),
        (["--assignments", "a", "--run", "b", "--ratings-run", "c"], "by themselves, without --run, --ratings-run"),
        (["--run", "a", "--without-vital", "skip"], "--without-vital is about --assignments"),
    ],
)
def test_runs_and_answers_are_evaluated_apart(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_nuggets_of_two_systems(tmp_path: Path) -> None:
    paths = []
    for name, assignment in (("a.jsonl", "support"), ("b.jsonl", "not_support")):
        nuggets = [{"text": "fact", "importance": "vital", "assignment": assignment}]
        lines = [json.dumps({"qid": f"q{n}", "query": "?", "nuggets": nuggets}) for n in range(6)]
        (tmp_path / name).write_text("\n".join(lines))
        paths.append(str(tmp_path / name))
    found = json.loads(evaluate_nuggets_command(paths, output="json", baseline=paths[1]))
    entry = found["runs"][paths[0]]["measures"]["strict_vital_score"]
    assert (entry["mean"], entry["difference"], entry["p"], entry["judged"]) == (1.0, 1.0, 2 / 64, None)


def test_stages_from_run_files_cut_to_what_was_kept(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["evaluate", "--stages", files["first"], files["second"], "--qrels", files["qrels"]]
    assert main([*arguments, "--kept", "3", "2", "--measures", "P@1", "--output", "json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["stages"]
    assert (first["stage"], second["stage"]) == ("bm25", "bm25:max")
    assert (first["documents"], second["documents"]) == (3, 2)
    assert second["measures"]["precision"] == {
        "mean": 1.0,
        "interval": [1.0, 1.0],
        "lift_before": 1.5,
        "lift_first": 1.5,
    }
    assert second["equal_depth"] == {"lift_before": 2.0, "lift_first": 2.0}
    assert second["measures"]["P@1"]["mean"] == 1.0
    assert main([*arguments, "--kept", "3", "2", "--rel", "5"]) == 0
    assert "0.0000" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kept", "3"], "kept needs a number of at least 1 for each of the 2 stages (bm25, bm25:max)"),
        (["--kept", "3", "0"], "kept needs a number of at least 1"),
        (["--measures", "Cov@3"], "Cov of a stage is not computed"),
    ],
)
def test_stages_that_cannot_be_evaluated(
    files: dict[str, str], options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evaluate", "--stages", files["first"], files["second"], "--qrels", files["qrels"]]
    assert main([*arguments, *options]) == 2
    assert message in capsys.readouterr().err
