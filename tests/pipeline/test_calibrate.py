"""`lancer calibrate`: from a matrix and grades to a file that a run can use. Figures are computed by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from lancer import schema
from lancer.cli import main
from lancer.config import Config
from lancer.errors import InputError, PlanError, UsageError
from lancer.evaluation.calibration_file import read_calibration
from lancer.formats.runs import read_run
from lancer.pipeline.attempts import Attempts
from lancer.pipeline.calibrate import Calibrated, calibrate
from lancer.pipeline.execute import Surroundings, run_stage
from lancer.pipeline.final_tables import final_tables
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.journal import Journal
from lancer.pipeline.plan import Plan, make_plan
from lancer.pipeline.reselect import reselect
from lancer.schema import Scale
from lancer.storage import Storage
from tests.coverage_tables import write_coverage, write_table
from tests.pipeline.folders import RunMaker
from tests.pipeline.judged import judged_config

# doc_id -> (rating, grade) of sub-questions 1 and 2.
MATRIX: dict[str, dict[str, list[tuple[float | None, int | None]]]] = {
    "q1": {"a": [(0, 0), (0, 0)], "b": [(2, 0), (2, 5)], "c": [(5, 4), (5, 5)]},
    "q2": {"a": [(1, 0), (2, 4)], "b": [(5, 0), (None, 3)], "c": [(3, None), (4, 5)]},
}


def write_run(folder: Path, scale: Scale = Scale.rating) -> str:
    """A coverage table and qrels.txt; ratings as they are, or divided by 10."""
    lines = []
    for query_id, documents in MATRIX.items():
        cells = []
        for rank, (doc_id, row) in enumerate(documents.items(), 1):
            for name, (value, grade) in zip("12", row, strict=True):
                scaled = value if value is None or scale is Scale.rating else value / 10
                cells.append((doc_id, rank, name, scaled))
                if grade is not None:
                    lines.append(f"{query_id} {name} {doc_id} {grade}\n")
        write_coverage(folder / "run" / "coverage.parquet" / f"{query_id}.parquet", query_id, cells, scale)
    (folder / "qrels.txt").write_text("".join(lines))
    (folder / "development.txt").write_text("q1\n")
    return str(folder / "run")


def fitted(folder: Path, **changes: Any) -> Calibrated:
    options: dict[str, Any] = {"queries": str(folder / "development.txt")}
    return calibrate(str(folder / "run"), str(folder / "qrels.txt"), str(folder / "c.json"), **(options | changes))


def test_the_map_is_fitted_on_the_development_queries_alone(tmp_path: Path) -> None:
    write_run(tmp_path)
    result = fitted(tmp_path)
    assert result.calibration == read_calibration(str(tmp_path / "c.json"))
    assert result.calibration.knots == ((0.0, 0.0), (2.0, 0.5), (5.0, 1.0))
    assert (result.calibration.scale, result.calibration.target) == (Scale.probability, "grade >= 4")
    made = result.calibration.provenance
    assert (made.queries, made.cells, made.positives) == (("q1",), 6, 3)
    assert "cells without a value, left out: 1" in result.notes
    assert "cells without a grade, left out: 1" in result.notes


def test_figures_say_which_queries_they_are_of(tmp_path: Path) -> None:
    write_run(tmp_path)
    lines = fitted(tmp_path).lines
    assert [(x.queries, x.values, x.count) for x in lines] == [
        ("development (fitted on these)", "before", 1),
        ("development (fitted on these)", "after", 1),
        ("others", "before", 1),
        ("others", "after", 1),
    ]
    before, after, other_before, other_after = lines
    assert before.figures.auc == after.figures.auc == pytest.approx(8.5 / 9)
    assert before.figures.error == pytest.approx((0.4**2 + 0.6**2) / 6)
    assert after.figures.error == pytest.approx(2 * 0.25 / 6)
    # q2: 1 -> .25 (no), 2 -> .5 (yes), 5 -> 1 (no), 4 -> 5/6 (yes)
    assert (other_before.figures.cells, other_before.figures.positives) == (4, 2)
    assert other_after.figures.auc == pytest.approx(2 / 4)
    assert other_after.figures.error == pytest.approx((0.25**2 + 0.5**2 + 1 + (1 / 6) ** 2) / 4)


def test_the_threshold_has_the_best_f1_of_the_development_cells(tmp_path: Path) -> None:
    write_run(tmp_path)
    result = fitted(tmp_path)
    threshold = result.calibration.threshold
    assert threshold is not None
    # At .5: 3 hits, 1 false; above it 2 hits, 1 missed: 6/7 against 4/5.
    assert (threshold.tau, threshold.measure, threshold.selector) == (0.5, "F1", None)
    assert threshold.value == pytest.approx(6 / 7)
    assert [x.measure for x in result.lines] == [None, pytest.approx(6 / 7), None, pytest.approx(4 / 5)]


def test_the_threshold_of_a_selector_is_by_its_rankings(tmp_path: Path) -> None:
    write_run(tmp_path)
    result = fitted(tmp_path, selector="greedy-coverage", measure="StRecall(rel=4)@1")
    threshold = result.calibration.threshold
    assert threshold is not None
    # c answers both sub-questions; from tau .51 on it alone is ahead, and the last of the best steps is 1.
    assert (threshold.tau, threshold.value) == (1.0, 1.0)
    assert threshold.selector == "greedy-coverage(tau=1.0)" or threshold.selector == "greedy-coverage(tau=1)"


def test_grades_make_ratings_of_probabilities(tmp_path: Path) -> None:
    write_run(tmp_path, Scale.probability)
    calibration = fitted(tmp_path, target="grade").calibration
    assert (calibration.from_scale, calibration.scale) == (Scale.probability, Scale.rating)
    x, y = zip(*calibration.knots, strict=True)
    assert y == (0.0, 2.5, 4.5)
    assert x == pytest.approx((0.0, 0.2, 0.5))


def test_figures_of_the_queries_it_was_fitted_on_are_never_the_only_ones_in_silence(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "development.txt").write_text("q1\nq2\nq9\n")
    notes = fitted(tmp_path).notes
    assert any("all figures are of those it was fitted on" in note for note in notes)
    assert any("1 queries are not in the matrix" in note for note in notes)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"queries": None}, UsageError, "name the development queries"),
        ({"share": 0.5}, UsageError, "name the development queries"),
        ({"queries": None, "share": 2.0}, UsageError, "found a share of 2"),
        ({"queries": None, "share": 1e-9}, UsageError, "has none of the 2 queries"),
        ({"measure": "alpha_nDCG@10"}, UsageError, "name the selector"),
        ({"selector": "max"}, UsageError, "has no tau"),
        ({"selector": "sum(tau=1)", "measure": "P@5 P@10"}, UsageError, "not by 2"),
        ({"selector": "greedy-coverage(ties=second)"}, UsageError, "needs second_order"),
        ({"rel": 6}, InputError, r"all 6 cells .* are alike \(grade >= 6: False\)"),
    ],
)
def test_what_cannot_be_fitted(tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    write_run(tmp_path)
    with pytest.raises(error, match=message):
        fitted(tmp_path, **changes)
    assert not (tmp_path / "c.json").exists()


def test_sub_questions_that_the_qrels_do_not_know(tmp_path: Path) -> None:
    write_run(tmp_path)
    (tmp_path / "qrels.txt").write_text("q1 s1 a 5\n")
    with pytest.raises(InputError, match=r"no cell has both .* sub-question '1' here, sub-topic 's1' in the qrels"):
        fitted(tmp_path)


def plan_of(config: Config) -> Plan:
    return make_plan(config, read_inputs(config, Storage()), Storage())


def finished_run(folder: Path) -> None:
    """`MATRIX` as what the judge of `judged_config` left."""
    write_run(folder)
    stages = [{"name": s.name, "identity": s.identity} for s in plan_of(judged_config(folder)).stages]
    (folder / "run" / "run.json").write_text(json.dumps({"queries": 2, "stages": stages}))


def test_a_run_uses_the_map_that_was_made_for_it(tmp_path: Path) -> None:
    finished_run(tmp_path)
    fitted(tmp_path)
    plain = plan_of(judged_config(tmp_path, "select.selectors=[sum(tau=0.3)]"))
    plan = plan_of(judged_config(tmp_path, f"judge.calibration={tmp_path}/c.json", "select.selectors=[sum(tau=0.3)]"))
    assert (plain.scale, plan.scale) == (Scale.rating, Scale.probability)
    changed = [a.name for a, b in zip(plain.stages, plan.stages, strict=True) if a.fingerprint != b.fingerprint]
    assert changed == ["judge", "select"]
    with pytest.raises(PlanError, match="tau"):
        plan_of(judged_config(tmp_path, f"judge.calibration={tmp_path}/c.json", "select.selectors=[sum(tau=3)]"))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("judge.layout=published", "settings.layout was 'shared-prefix', here it is 'published'"),
        ("judge.with_request=false", "settings.with_request was True, here it is False"),
        ("engines.llm.questions=3", r"engines\[0\].questions was 2, here it is 3"),
    ],
)
def test_a_map_of_other_values_is_refused(tmp_path: Path, override: str, message: str) -> None:
    finished_run(tmp_path)
    fitted(tmp_path)
    with pytest.raises(InputError, match=message):
        plan_of(judged_config(tmp_path, f"judge.calibration={tmp_path}/c.json", override))


def test_more_attempts_do_not_change_what_values_mean(tmp_path: Path) -> None:
    finished_run(tmp_path)
    fitted(tmp_path)
    options = (f"judge.calibration={tmp_path}/c.json", "judge.attempts=3", "select.selectors=[max]")
    assert plan_of(judged_config(tmp_path, *options)).scale is Scale.probability


def test_a_matrix_without_its_run_gives_a_map_that_no_run_takes(tmp_path: Path) -> None:
    finished_run(tmp_path)
    (tmp_path / "run" / "run.json").rename(tmp_path / "run.json")
    assert any("no run can use the map" in note for note in fitted(tmp_path).notes)
    with pytest.raises(InputError, match=r"c.json: does not say what it was made for"):
        plan_of(judged_config(tmp_path, f"judge.calibration={tmp_path}/c.json", "select.selectors=[max]"))


def test_calibrated_values_are_not_calibrated_again(tmp_path: Path) -> None:
    finished_run(tmp_path)
    fitted(tmp_path)
    options = (f"judge.calibration={tmp_path}/c.json", "select.selectors=[max]")
    stages = [{"name": s.name, "identity": s.identity} for s in plan_of(judged_config(tmp_path, *options)).stages]
    (tmp_path / "run" / "run.json").write_text(json.dumps({"queries": 2, "stages": stages}))
    with pytest.raises(InputError, match="calibrated already"):
        fitted(tmp_path)


def test_another_file_is_no_calibration(tmp_path: Path) -> None:
    judged_config(tmp_path)
    (tmp_path / "c.json").write_text('{"knots": []}')
    with pytest.raises(InputError, match=r"c.json: .*is no calibration"):
        plan_of(judged_config(tmp_path, f"judge.calibration={tmp_path}/c.json"))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path)
    files = ["--matrix", f"{tmp_path}/run", "--qrels", f"{tmp_path}/qrels.txt", "--output", f"{tmp_path}/c.json"]
    assert main(["calibrate", *files, "--queries", f"{tmp_path}/development.txt"]) == 0
    text = capsys.readouterr().out
    assert "development (fitted on these)" in text
    assert "best on the development queries: tau 0.5 (F1 0.8571)" in text
    assert main(["calibrate", *files, "--share", "1", "--print", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scale"] == "probability"
    assert [line["queries"] for line in found["lines"]] == ["development (fitted on these)"] * 2
    assert found["threshold"]["measure"] == "F1"


def test_likelihoods_go_through_a_run_as_probabilities(tmp_path: Path) -> None:
    """Every reader of the scale: the chain of columns, selection, the final tables, `lancer select` and its tag."""
    with pytest.raises(PlanError, match="tau"):
        RunMaker(tmp_path, "judge.readout=likelihood", "select={selectors: [sum(tau=3)]}")
    maker = RunMaker(tmp_path, "judge.readout=likelihood", "select={selectors: [greedy-coverage(tau=0.5)]}")
    assert (maker.plan.scale, maker.plan.run_tag) == (Scale.probability, "given:judge")
    table, reports = maker.plan.shards[0].table, []
    attempts = Attempts.of(maker.storage, maker.store.root, "all", 1)
    for stage in maker.plan.stages:
        journals = {name: Journal(maker.storage, f"{maker.store.root}/calls", "all") for name in stage.stage.engines}
        at = Surroundings(maker.store, maker, lambda: maker, lambda own=journals: own, attempts=attempts)  # type: ignore[misc]
        name = maker.store.part(stage, maker.plan.shards[0])
        table, report = run_stage(stage, table, name=name, there=None, redo=False, at=at)
        reports.append(report)
    judged = next(r for r in reports if r.stage == "judge")
    assert judged.failed_cells == 0 < judged.cells == judged.pairs < judged.calls
    coverage = final_tables(table, maker.plan.scale)["coverage.parquet"].to_pylist()
    assert all(row["rating"] is None and row["cut_characters"] == 0 for row in coverage)
    assert all(
        row["probability"] == pytest.approx(1 / (1 + math.exp(-float(row["raw"]))), abs=1e-5) for row in coverage
    )
    write_table(tmp_path / "run" / "coverage.parquet" / "p.parquet", coverage, schema.COVERAGE_SCHEMA)
    (tmp_path / "run" / "run.json").write_text('{"stages": [{"name": "judge"}, {"name": "select"}]}')
    (tmp_path / "run" / "first_stage.trec").write_text("q1 Q0 a 1 1.0 given\n")
    result = reselect(f"{tmp_path}/run", ["greedy-coverage(tau=0.5)"], f"{tmp_path}/new.trec")
    again = read_run(f"{tmp_path}/new.trec")
    assert again.tag == "given:judge:greedy-coverage(tau=0.5)"
    chosen = {row["query_id"]: row["rankings"][0]["doc_ids"] for row in table.to_pylist()}
    assert {q: [d for d, _ in ranking] for q, ranking in again.rankings.items()} == chosen
    assert result.missing == 0


def test_validate_reads_the_prompt_and_the_calibration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judged_config(tmp_path)
    (tmp_path / "prompt.txt").write_text("{document}\n")
    engine = "engines={llm: {kind: synthetic}}"
    judge = ["estimate=null", engine, f"judge.prompt={tmp_path}/prompt.txt", "select.selectors=[max]"]
    assert main(["validate", str(tmp_path / "config.yaml"), *judge]) == 2
    assert f"{tmp_path}/prompt.txt:1: the prompt ends without {{sub_question}}" in capsys.readouterr().err
    (tmp_path / "prompt.txt").write_text("{document}\n\n{sub_question}\nRating:")
    assert main(["validate", str(tmp_path / "config.yaml"), *judge]) == 0
    assert main(["validate", str(tmp_path / "config.yaml"), *judge, f"judge.calibration={tmp_path}/none.json"]) == 3
