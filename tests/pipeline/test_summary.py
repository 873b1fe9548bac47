from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from lancer.engines.protocols import EngineClock
from lancer.pipeline.execute import StageReport
from lancer.pipeline.summary import RunResult, show, wide_console


def result() -> RunResult:
    """Two shards of two stages; the second shard's first stage was there already."""
    found = RunResult("runs/[x]", 5)
    judged = {"calls": 20, "pairs": 20, "prompt_tokens": 2000, "cached_tokens": 1500, "output_tokens": 20}
    judged |= {"cut_documents": 2, "cut_inputs": 3}
    found.count(
        [StageReport("retrieve", 3, False, 1.0), StageReport("judge", 3, False, 4.0, {"unreadable": 1}, **judged)]
    )
    found.count([StageReport("retrieve", 2, True, 9.0), StageReport("judge", 2, False, 6.0, {"error": 2}, **judged)])
    return found


def test_stages_add_up_over_shards() -> None:
    retrieve, judge = result().stages
    assert (retrieve.stage, retrieve.queries, retrieve.reused_queries) == ("retrieve", 5, 2)
    assert retrieve.seconds == 1.0, "what was reused took no time of this run"
    assert retrieve.queries_per_s == 3.0
    assert (judge.calls, judge.pairs, judge.prompt_tokens, judge.cached_tokens) == (40, 40, 4000, 3000)
    assert judge.failures == {"unreadable": 1, "error": 2}
    assert judge.queries_per_s == 0.5


def test_a_stage_that_only_reused_has_no_rate() -> None:
    found = RunResult("runs/x", 2)
    found.count([StageReport("retrieve", 2, True, 0.5)])
    assert found.stages[0].queries_per_s is None


def test_the_closing_table() -> None:
    found = result()
    found.seconds = 12.34
    found.engines = {"llm": [EngineClock(startup_s=5.0, busy_s=9.5, idle_s=0.5, calls=1240, tokens=4040)] * 2}
    found.measures = {"run.trec": {"StRecall@10": 0.75}, "first_stage.trec": {}}
    found.notes = ["first.run: candidate '[/b]' has no text"]
    stream = io.StringIO()
    show(found, Console(file=stream, width=200, markup=False))
    lines = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    assert any(line.startswith("judge 5 - 40") and line.endswith("10.0 0.5 3") for line in lines)
    assert any("4,000 3,000 (75%) 40" in line for line in lines), "the share of the prompt tokens that were cached"
    assert "llm[0] 5.0 9.5 0.5 1,240 4,040" in lines
    assert "llm[1] 5.0 9.5 0.5 1,240 4,040" in lines
    assert "run.trec 0.7500" in lines
    assert any(line.startswith("note: judge: 4 documents did not fit and were cut") for line in lines)
    assert any(line.startswith("note: judge: 6 inputs were longer than the model takes") for line in lines)
    assert "first_stage.trec -" in lines
    assert "note: first.run: candidate '[/b]' has no text" in lines
    assert lines[-1] == "5 queries in 12.3 s; files are in runs/[x]"


def test_the_result_is_json() -> None:
    found = result()
    found.engines = {"llm": [EngineClock(startup_s=5.0, busy_s=9.5, idle_s=0.5, calls=40, tokens=4040)]}
    record = json.loads(json.dumps(found.as_dict()))
    assert record["stages"][1]["prompt_tokens"] == 4000
    assert record["engines"]["llm"][0]["busy_s"] == 9.5


def test_tables_are_not_cut_in_files_and_names_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = "[red]" + "x" * 150 + "[/b] :car:"
    wide_console().print(text)
    assert capsys.readouterr().out == text + "\n"
