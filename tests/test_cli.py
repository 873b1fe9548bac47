"""The command: exit codes, what goes to standard output and what to standard error. No run is carried out here."""

from __future__ import annotations

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lancer
from lancer.cli import main
from lancer.formats.runs import read_run
from tests.pipeline.folders import RunMaker
from tests.pipeline.small import write_small

ROOT = Path(__file__).resolve().parents[1]
STAGES = ["retrieve", "decompose", "estimate", "select"]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the small run's config and inputs, as the working directory; nothing has been run."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    write_small(tmp_path)
    return tmp_path


@pytest.fixture
def ratings(tmp_path: Path) -> str:
    """Two queries, ids of every kind: b answers both sub-questions of the first."""
    rows: list[tuple[str, str, list[int | None]]] = [
        ("q#1:ä", "d/a", [5, 0]),
        ("q#1:ä", "d:b", [3, 3]),
        ("q2", "c#1", [0, None]),
    ]
    cells = [
        {"query_id": q, "doc_id": d, "sub_question_id": str(j), "rating": value}
        for q, d, values in rows
        for j, value in enumerate(values, start=1)
    ]
    path = tmp_path / "ratings.jsonl"
    path.write_text("".join(json.dumps(c) + "\n" for c in cells), "utf-8")
    return str(path)


# Command line beside `config.yaml`, what is spoiled first, exit code, what the message holds.
REFUSED: list[tuple[str, list[str], str, int, str]] = [
    ("unknown key", ["retrieve.dpth=3"], "", 2, "unknown key 'retrieve.dpth'; did you mean 'depth'?"),
    ("no override", ["depth"], "", 2, "override 'depth' is not of the form key.path=value"),
    ("unknown selector", ["select.selectors=[smu]"], "", 2, "unknown selector 'smu'; did you mean 'sum'?"),
    ("unknown measure", ["measures=nDGC@10"], "", 2, "measure 'nDGC@10' does not exist; did you mean 'nDCG'?"),
    ("missing file", [], "requests.jsonl", 3, "requests.jsonl: no such file"),
    ("empty file", ["requests=empty.tsv"], "", 3, "empty.tsv: holds no request"),
    ("malformed line", ["corpus=bad.jsonl"], "", 3, "bad.jsonl:2: not JSON"),
    ("no text at all", ["corpus=no_text.jsonl"], "", 3, "no_text.jsonl: no document has a text; it is one of text,"),
    ("missing qrels", ["qrels=none.txt"], "", 3, "none.txt: no such file"),
    ("other qrels", ["qrels=other.txt"], "", 3, "other.txt: has no query of the requests; e.g. 'x' there, 'q1' in"),
    ("tau above the scale", ["select.selectors=[sum(tau=3)]"], "", 4, "tau 3 is above the maximum of the scale"),
    ("model is missing", ["engines.scorer.model=./model"], "", 5, "model './model': no such folder"),
    ("unwritable output", ["output=other.txt/run"], "", 8, "cannot write to other.txt/run: Not a directory"),
]


@pytest.mark.parametrize("command", [["validate"], ["plan"], ["run", "--dry-run"]], ids=" ".join)
@pytest.mark.parametrize(
    ("overrides", "without", "code", "message"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_what_cannot_run_is_refused_with_its_code(
    small: Path,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    overrides: list[str],
    without: str,
    code: int,
    message: str,
) -> None:
    (small / "empty.tsv").write_text("\n")
    (small / "bad.jsonl").write_text('{"doc_id": "a", "text": "b"}\n{"doc_id"\n')
    (small / "no_text.jsonl").write_text('{"doc_id": "a", "txt": "b"}\n')
    (small / "other.txt").write_text("x 1 a 1\n")
    if without:
        (small / without).unlink()
    assert main([*command, "config.yaml", *overrides]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("lancer: ")
    assert message in err
    assert not (small / "run").exists()


def test_a_config_that_is_missing_or_none(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "nothing.yaml"]) == 3
    (small / "list.yaml").write_text("- a\n")
    assert main(["plan", "list.yaml"]) == 3
    assert capsys.readouterr().err == (
        "lancer: nothing.yaml: cannot be read: No such file or directory\n"
        "lancer: list.yaml: a config is a YAML mapping of keys to values\n"
    )


def test_a_plan_that_cannot_fit_shows_the_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(ROOT)
    assert main(["plan", "configs/demo.yaml", f"output={tmp_path}/run", "ray.num_cpus=1"]) == 4
    message = capsys.readouterr().err
    assert "the plan needs 1.75 CPUs, this machine has 1: " in message
    assert "1 x 0.25 (bm25) + 1 x 0.5 (llm) + 1 x 0.5 (scorer) + 2 x 0.25 (workers)" in message
    assert "lower replicas, num_cpus or num_gpus of an engine, or ray.workers" in message


def test_a_config_for_another_machine_is_valid_here(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert main(["validate", "config.yaml", "engines.scorer.num_gpus=1000"]) == 0
    assert main(["plan", "config.yaml", "engines.scorer.num_gpus=1000"]) == 4


def test_plan_needs_what_is_left_to_do_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    run = RunMaker(tmp_path, "engines.llm.num_cpus=1000")
    (tmp_path / "config.json").write_text(run.config.model_dump_json())
    other = [str(tmp_path / "config.json"), "select.selectors=[max]"]
    assert main(["plan", *other]) == 4
    run.begin("finished")
    for shard in run.plan.shards:
        run.shard(shard)
    assert main(["plan", *other]) == 0
    capsys.readouterr()
    assert main(["run", "--dry-run", *other]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "judge: 4 of 4 queries are there already" in lines
    assert "select: 0 of 4 queries are there already" in lines
    assert "select: runs again, because settings.selectors[0]: sum(tau=3) → max" in lines
    assert main(["plan", "--output", "json", *other[:1]]) == 0
    assert json.loads(capsys.readouterr().out)["reuse"][-1] == "select: 4 of 4 queries are there already"
    assert main(["run", "--dry-run", "--overwrite", *other]) == 4
    assert main(["run", "--dry-run", "--fail-if-exists", *other]) == 8


def test_plan_shows_stages_pools_and_their_sum(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "config.yaml"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [line.split()[0] for line in out.splitlines()[1:5]] == STAGES
    assert any(line.split() == ["scorer", "bi-encoder", "1", "0.5", "0"] for line in out.splitlines())
    assert any(line.split() == ["workers", "shards", "2", "0.25", "0"] for line in out.splitlines())
    assert "4 queries in " in out
    assert "needs 1 CPUs and 0 GPUs" in out
    assert not (small / "run").exists()


def test_plan_as_json(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "config.yaml", "--output", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [s["name"] for s in plan["stages"]] == STAGES
    assert plan["stages"][2]["reads"] == ["text", "candidates", "sub_questions"]
    assert plan["stages"][2]["engines"] == ["scorer"]
    assert sum(h["count"] * h["cpus"] for h in plan["hardware"]) == 1.0
    assert plan["queries"] == 4
    assert plan["output"] == str(small / "run")


def test_plan_with_a_forecast(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    priced = "prices.scorer={usd_per_million_prompt_tokens: 1000}"
    assert main(["plan", "config.yaml", priced, "--estimate", "--sample", "4", "--output", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    estimate = plan["estimate"]
    pairs = plan["estimate"]["total"]["counts"]["pairs"]
    assert (pairs["value"], pairs["low"], pairs["high"]) == (9 * 8, 9 * 8, 9 * 8)
    assert json.loads((small / "run/estimate.json").read_text()) == estimate
    assert [s["name"] for s in plan["stages"]] == STAGES

    usd = estimate["total"]["usd"]["value"]
    limits = [f"limits.usd={usd / 2}", "limits.hours=1"]
    assert main(["plan", "config.yaml", priced, *limits, "--estimate"]) == 4
    out, err = capsys.readouterr()
    assert "forecast for 4 queries, from 4 of them" in out
    assert "limits.hours 1: what the run takes of it is not known" in out
    assert f"lancer: the run is forecast to take USD {usd:,.2f} of limits.usd" in err
    assert main(["plan", "config.yaml", priced, f"limits.usd={usd * 2}", "--estimate"]) == 0
    assert f"limits.usd {usd * 2:g}: enough" in capsys.readouterr().out


def test_a_forecast_is_not_kept_in_a_folder_of_other_files(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (small / "run").mkdir()
    (small / "run/thesis.txt").write_text("mine")
    assert main(["plan", "config.yaml", "--estimate"]) == 8
    assert "holds files, but no run.json" in capsys.readouterr().err


def test_sample_and_rates_are_about_a_forecast(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "config.yaml", "--sample", "3"]) == 2
    assert "--sample and --rates are about --estimate" in capsys.readouterr().err
    assert main(["plan", "config.yaml", "--estimate", "--rates", "nothing"]) == 3
    with pytest.raises(SystemExit):
        main(["plan", "config.yaml", "--estimate", "--sample", "0"])
    assert "found '0'; allowed: a number from 1" in capsys.readouterr().err


def test_names_are_shown_as_they_are(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "config.yaml", 'output="run [/b] :car: [red]x"']) == 0
    assert "output: run [/b] :car: [red]x" in capsys.readouterr().out


def test_validate(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "config.yaml"]) == 0
    assert capsys.readouterr().out == "config.yaml is valid: 4 queries\n"
    with (small / "first.run").open("a") as run:
        run.write("q1 Q0 unknown 9 1.0 first\nother Q0 a 1 1.0 first\n")
    assert main(["validate", "config.yaml", "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["valid"], found["queries"]) == (True, 4)
    assert any(n.endswith("first.run: queries that are not in the requests, left out: 1") for n in found["notes"])
    assert any(n.endswith("first.run: 1 of 9 candidates have no text, e.g. 'unknown'") for n in found["notes"])


@pytest.mark.parametrize("mode", ["--resume", "--overwrite", "--fail-if-exists"])
def test_an_output_folder_that_is_no_run_is_left_alone(
    small: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    (small / "run").mkdir()
    (small / "run" / "thesis.txt").write_text("mine")
    assert main(["run", "config.yaml", mode]) == 8
    assert "run holds files, but no run.json: it is no run folder; choose another `output`" in capsys.readouterr().err
    assert [p.name for p in (small / "run").iterdir()] == ["thesis.txt"]


def test_a_run_that_is_there_can_be_refused(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (small / "run").mkdir()
    (small / "run" / "run.json").write_text("{}")
    assert main(["run", "config.yaml", "--fail-if-exists"]) == 8
    assert "holds a run already" in capsys.readouterr().err


def test_the_job_does_what_the_command_does(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["rerank.py", "config.yaml", "retrieve.depth=3", "--dry-run"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "jobs" / "rerank.py"), run_name="__main__")
    assert ended.value.code == 0
    from_job = capsys.readouterr().out
    assert main(["run", "config.yaml", "retrieve.depth=3", "--dry-run"]) == 0
    assert capsys.readouterr().out == from_job


def test_select_into_a_file_or_a_folder(ratings: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = str(tmp_path / "one.trec")
    assert main(["select", "--matrix", ratings, "--selector", "greedy-coverage(tau=3)", "--output", one]) == 0
    out, err = capsys.readouterr()
    assert out == f"greedy-coverage(tau=3): 2 queries in {one}\n"
    assert err == "note: cells without a value, counted 0: 1\n"
    assert Path(one).read_text("utf-8") == (
        "q#1:ä Q0 d:b 1 2.0 matrix:greedy-coverage(tau=3)\n"
        "q#1:ä Q0 d/a 2 1.0 matrix:greedy-coverage(tau=3)\n"
        "q2 Q0 c#1 1 1.0 matrix:greedy-coverage(tau=3)\n"
    )
    several = tmp_path / "several"
    specs = ["--selector", "sum", "--selector", "max"]
    assert main(["select", "--matrix", ratings, *specs, "--output", str(several)]) == 0
    assert sorted(p.name for p in several.iterdir()) == ["max.trec", "sum(tau=1).trec"]
    assert read_run(several / "max.trec").rankings["q#1:ä"][0][0] == "d/a"


def test_select_explains(ratings: str, tmp_path: Path) -> None:
    options = ["--output", str(tmp_path / "x.trec"), "--explain", str(tmp_path / "why.jsonl")]
    assert main(["select", "--matrix", ratings, "--selector", "greedy-coverage(tau=3)", *options]) == 0
    first, second = [json.loads(line) for line in (tmp_path / "why.jsonl").read_text("utf-8").splitlines()]
    assert first == {
        "query_id": "q#1:ä",
        "selector": "greedy-coverage(tau=3)",
        "chosen": [{"doc_id": "d:b", "rank": 1, "covers": ["1", "2"]}],
        "uncovered": [],
    }
    assert (second["chosen"], second["uncovered"]) == ([], ["1", "2"])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--selector", "smu"], 2, "unknown selector 'smu'; did you mean 'sum'?"),
        (["--selector", "sum(tau=1e9)"], 2, "tau must be a number from 0 to 5, found 1000000000"),
        (["--selector", "sum", "--selector", "sum(tau=1)", "--output", "out"], 2, "a selector is given twice"),
        (["--selector", "sum", "--matrix", "gs://bucket/x"], 2, "scheme 'gs' is not supported"),
        (
            ["--selector", "sum", "--matrix", "nothing"],
            3,
            "nothing: no such file, nor a folder with a coverage.parquet",
        ),
        (["--selector", "sum", "--run", "empty.run"], 3, "empty.run: holds no run line"),
        (["--selector", "max(", "--matrix", "empty.jsonl"], 2, "the closing parenthesis is missing"),
        (["--selector", "max", "--matrix", "empty.jsonl"], 3, "empty.jsonl: holds no rating"),
        (["--selector", "greedy-coverage(rest=second)"], 4, "needs second_order: a second order of the candidates"),
        (
            ["--selector", "sum", "--output", "folder"],
            8,
            "cannot write to folder: it is a folder, and a file is needed",
        ),
        (["--selector", "sum", "--output", "empty.run/x"], 8, "cannot write to empty.run: Not a directory"),
    ],
)
def test_select_refuses(
    ratings: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("empty.run", "empty.jsonl"):
        (tmp_path / name).write_text("")
    assert main(["select", "--matrix", ratings, "--output", "x.trec", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("lancer: ")
    assert message in err
    assert not (tmp_path / "x.trec").exists()


def test_evaluate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, qrels = tmp_path / "a.run", tmp_path / "qrels.txt"
    run.write_text("q1 Q0 x 1 2.0 bm25\nq1 Q0 a 2 1.0 bm25\n")
    qrels.write_text("q1 1 a 1\nq1 2 b 1\n")
    arguments = ["evaluate", "--run", str(run), "--qrels", str(qrels)]
    assert main([*arguments, "--measures", "StRecall@2"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["StRecall@2", "bm25", "0.5000"]
    assert main([*arguments, "--measures", "StRecall@2", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"]["bm25"]["measures"]["StRecall@2"]["mean"] == 0.5
    assert main([*arguments, "--measures", "StRecal@2"]) == 2
    assert main(["evaluate", "--run", str(run)]) == 2
    assert main(["evaluate", "--run", str(tmp_path / "none.run"), "--qrels", str(qrels)]) == 3
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("lancer: measure 'StRecal@2' does not exist; did you mean 'StRecall'?")
    assert err[1] == "lancer: neither qrels nor ratings are given: there is nothing to evaluate against"
    assert err[2].endswith("none.run: no such file or folder")


def test_doctor_has_a_remedy_for_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LANCER_CACHE", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("")
    assert main(["doctor", "--output", "json", "--storage", str(tmp_path / "file" / "runs")]) == 5
    checks = json.loads(capsys.readouterr().out)
    assert [c["what"] for c in checks][:2] == ["Python", "Java for Lucene"]
    assert all(bool(c["remedy"]) != c["ok"] for c in checks)
    broken = {c["what"]: c["remedy"] for c in checks if not c["ok"]}
    assert "run `python -m lancer.engines.embedded`" in broken["model embedded:minilm"]
    assert "Not a directory" in broken[f"storage {tmp_path}/file/runs"]
    assert main(["doctor", "--endpoint", "http://localhost:9000"]) == 2
    assert "--storage" in capsys.readouterr().err


def test_wrong_usage_ends_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["rnu"], ["plan"], ["run", "c.yaml", "--overwrite", "--resume"], ["select", "--matrix", "x"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith("usage: lancer")
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"lancer {lancer.__version__}\n"


def test_the_installed_command_passes_the_exit_code_on(tmp_path: Path) -> None:
    command = shutil.which("lancer", path=str(Path(sys.executable).parent))
    assert command is not None, "the package is installed with its command"
    ended = subprocess.run([command, "plan", "none.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr == "lancer: none.yaml: cannot be read: No such file or directory\n"


def test_overrides_may_stand_behind_options(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", str(ROOT / "configs" / "demo.yaml"), "retrieve.depth=7", "--output", "json", "retrieve.dpth=3"]
    assert main(command) == 2
    assert "did you mean 'depth'?" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", "--run", "x.trec", "--nonsense", "retrieve.depth=3"])
    assert stopped.value.code == 2
