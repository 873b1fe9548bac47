"""The four outputs."""

from __future__ import annotations

import csv
import io
import json

import pytest

from lancer.errors import UsageError
from lancer.evaluation.measures import evaluate, parse_measures
from lancer.evaluation.nuggets import evaluate_nuggets
from lancer.evaluation.results import Results, collect
from lancer.evaluation.tables import render
from lancer.formats.nuggets import Nugget, Topic
from lancer.formats.qrels import Qrel


@pytest.fixture(scope="module")
def results() -> Results:
    """Eight queries: `new_run` finds the relevant document first everywhere, `bm25` second."""
    qrels = [Qrel(f"q{n}", "0", "a", 1) for n in range(8)]
    measures = parse_measures("P@1 nDCG@10")
    rankings = {"bm25": ["x", "a"], "new_run": ["a"]}
    runs = {name: evaluate({f"q{n}": r for n in range(8)}, qrels, measures) for name, r in rankings.items()}
    return collect(runs, baseline="bm25")


def test_table(results: Results) -> None:
    lines = render(results).splitlines()
    assert lines[0].split() == [
        "measure", "run", "mean", "95%", "interval", "judged", "difference", "p", "corrected", "p",
    ]  # fmt: skip
    assert lines[1].split() == ["P@1", "bm25", "0.0000", "0.0000", "to", "0.0000", "0.0000@1", "baseline"]
    found = ["P@1", "new_run", "1.0000", "1.0000", "to", "1.0000", "1.0000@1", "+1.0000", "0.0078", "0.0078", "*"]
    assert lines[2].split() == found
    assert lines[3].split()[5:7] == ["0.6309", "0.5000@10"]
    assert any("paired two-sided randomisation test against bm25; corrected by Holm" in line for line in lines)


def test_table_has_no_escape_codes(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in render(results, per_query=True)


def test_table_per_query(results: Results) -> None:
    lines = [line.split() for line in render(results, per_query=True).splitlines()]
    assert ["query_id", "run", "P@1", "nDCG@10"] in lines
    assert ["q3", "bm25", "0.0000", "0.6309"] in lines
    assert ["q3", "new_run", "1.0000", "(+1.0000)", "1.0000", "(+0.3691)"] in lines


def test_columns_are_aligned_by_width_on_the_screen() -> None:
    qrels = [Qrel("q", "0", "a", 1)]
    runs = {name: evaluate({"q": ["a"]}, qrels, parse_measures("P@1")) for name in ("日本", "bm25")}
    lines = render(collect(runs)).splitlines()
    assert lines[1].replace("日本", "bm25") == lines[2]


def test_json(results: Results) -> None:
    value = json.loads(render(results, "json", per_query=True))
    assert value["comparison"] == {"baseline": "bm25", "test": "randomisation", "correction": "holm"}
    entry = value["runs"]["new_run"]["measures"]["P@1"]
    assert entry.pop("per_query") == {f"q{n}": 1.0 for n in range(8)}
    assert entry.pop("differences") == {f"q{n}": 1.0 for n in range(8)}
    assert entry == {
        "mean": 1.0,
        "interval": [1.0, 1.0],
        "queries": 8,
        "judged": 1.0,
        "difference": 1.0,
        "p": 2 / 256,
        "p_corrected": 2 / 256,
        "significant": True,
        "better": 8,
        "worse": 0,
    }
    assert "per_query" not in json.loads(render(results, "json"))["runs"]["bm25"]["measures"]["P@1"]


def test_csv(results: Results) -> None:
    rows = list(csv.DictReader(io.StringIO(render(results, "csv"))))
    assert [(row["run"], row["measure"]) for row in rows] == [
        ("bm25", "P@1"), ("bm25", "nDCG@10"), ("new_run", "P@1"), ("new_run", "nDCG@10"),
    ]  # fmt: skip
    assert rows[0]["difference"] == rows[0]["p"] == rows[0]["significant"] == ""
    assert (rows[2]["mean"], rows[2]["judged"], rows[2]["p"]) == ("1.0", "1.0", "0.0078125")
    assert rows[2]["significant"] == "true"


def test_csv_per_query(results: Results) -> None:
    rows = list(csv.DictReader(io.StringIO(render(results, "csv", per_query=True))))
    assert len(rows) == 2 * 2 * 8
    found = {"run": "new_run", "measure": "P@1", "query_id": "q7", "value": "1.0", "difference": "1.0"}
    assert found in rows


def test_latex(results: Results) -> None:
    text = render(results, "latex")
    lines = text.splitlines()
    assert "\\begin{tabular}{lrrrr}" in lines
    assert "run & P@1 & nDCG@10 & judged@1 & judged@10 \\\\" in lines
    assert "bm25 & 0.0000 & 0.6309 & 0.0000 & 0.5000 \\\\" in lines
    assert "new\\_run & 1.0000$^{\\dagger}$ & 1.0000$^{\\dagger}$ & 1.0000 & 1.0000 \\\\" in lines
    assert lines[-1] == "\\end{tabular}"
    assert all(line.startswith("%") for line in lines[: lines.index("\\begin{tabular}{lrrrr}")])


def test_latex_per_query(results: Results) -> None:
    lines = render(results, "latex", per_query=True).splitlines()
    assert "\\begin{tabular}{llrr}" in lines
    assert "q0 & new\\_run & 1.0000 (+1.0000) & 1.0000 (+0.3691) \\\\" in lines


def test_latex_prints_every_character_of_a_tag() -> None:
    qrels = [Qrel("q", "0", "a", 1)]
    tag = r"a&b_50%|<x>\\y{z}~^#$"
    runs = {name: evaluate({"q": ["a"]}, qrels, parse_measures("P@1")) for name in (tag,)}
    row = next(line for line in render(collect(runs), "latex").splitlines() if line.startswith("a"))
    assert row == (
        r"a\&b\_50\%\textbar{}\textless{}x\textgreater{}\textbackslash{}\textbackslash{}y\{z\}"
        r"\textasciitilde{}\textasciicircum{}\#\$ & 1.0000 & 1.0000 \\"
    )


def test_a_difference_below_zero_has_a_minus_sign_and_none_a_plus() -> None:
    qrels = [Qrel("q1", "0", "a", 1), Qrel("q2", "0", "a", 1)]
    measures = parse_measures("P@1")
    runs = {
        "bm25": evaluate({"q1": ["a"], "q2": ["x"]}, qrels, measures),
        "worse": evaluate({"q1": ["x"], "q2": ["x"]}, qrels, measures),
    }
    text = render(collect(runs, baseline="bm25"), "latex", per_query=True)
    assert "q1 & worse & 0.0000 ($-$1.0000) \\\\" in text
    assert "q2 & worse & 0.0000 (+0.0000) \\\\" in text
    assert "-0.5000" in render(collect(runs, baseline="bm25"))


def test_measures_of_answers_have_no_column_of_judged_documents() -> None:
    answer = Topic("q", None, (Nugget("fact", "vital", "support"),))
    lines = render(collect({"answers": evaluate_nuggets([answer])})).splitlines()
    assert lines[0].split() == ["measure", "run", "mean", "95%", "interval"]
    assert not any(line.startswith("Judged") for line in lines)


def test_another_output_is_a_usage_error(results: Results) -> None:
    with pytest.raises(UsageError, match="output 'jsn' does not exist; did you mean 'json'"):
        render(results, "jsn")


def test_a_note_of_all_runs_is_said_once() -> None:
    qrels = [Qrel("q1", "0", "a", 1), Qrel("q2", "0", "a", 1)]
    measures = parse_measures("StRecall@5")
    runs = {
        "short": evaluate({"q1": ["a"]}, qrels, measures),
        "long": evaluate({"q1": ["a"], "q2": ["a"]}, qrels, measures),
    }
    lines = render(collect(runs)).splitlines()
    assert "Note: no query has more than one sub-topic, for StRecall@5." in lines
    assert "Note on short: queries of the judgments that the run lacks, counted 0: 1 (q2)." in lines
    assert sum(line.startswith("Note") for line in lines) == 2
