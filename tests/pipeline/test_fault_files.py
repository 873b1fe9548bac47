"""Damaged, foreign and outdated files of a run, on a real Ray: made again, from what was paid for."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from lancer.config import Config
from lancer.formats.runs import read_run
from lancer.pipeline.distributed.runner import run
from lancer.pipeline.store import TABLES
from lancer.prompts import judge
from tests.http_servers import Reply, Request, completion
from tests.pipeline.damage import empty, exchange, flip, foreign, parts, tear
from tests.pipeline.judged import CALLS, N, again, calls, reused_calls, run_bytes
from tests.pipeline.rated import Served
from tests.pipeline.small import DOCUMENTS, REQUESTS

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("session_ray")]

NOTHING: Final = {"decompose": 0, "judge": 0}


@pytest.mark.parametrize("damage", [flip, tear, empty, exchange, foreign])
def test_damaged_parts_are_made_again_from_the_journal(
    copied: Path, undisturbed: Path, damage: Callable[[Path], None]
) -> None:
    for stage in ("retrieve", "decompose", "judge", "select"):
        damage(parts(copied, stage)[1])
    damage(next((copied / "run" / "ranking.parquet").glob("shard-01*")))
    result = run(again(copied, undisturbed))
    assert run_bytes(copied / "run") == run_bytes(undisturbed / "run")
    assert calls(result) == NOTHING
    assert reused_calls(result) == {"decompose": 1, "judge": CALLS["judge"] // len(REQUESTS)}


@pytest.mark.parametrize("damage", [flip, tear, empty, exchange, foreign])
def test_damaged_final_tables_are_found_and_made_again(
    copied: Path, undisturbed: Path, damage: Callable[[Path], None]
) -> None:
    """All at once, also those that nothing of a run reads again."""
    tables = [copied / "run" / name for name in TABLES]
    before = {table.name: sorted(f.name for f in table.iterdir()) for table in tables}
    for table in tables[:1] if damage is foreign else tables:  # under a name that fits its bytes only a ranking shows
        damage(sorted(table.iterdir())[2])
    result = run(again(copied, undisturbed))
    assert run_bytes(copied / "run") == run_bytes(undisturbed / "run")
    assert calls(result) == NOTHING
    assert {s.queries for s in result.stages} == {len(REQUESTS)}, "what is done again counts once"
    for table in tables:
        assert sorted(f.name for f in table.iterdir()) == before[table.name]
        for file in table.iterdir():
            assert hashlib.sha256(file.read_bytes()).hexdigest()[:12] in file.name


def test_a_damaged_part_is_no_obstacle_where_only_selection_is_to_be_done(copied: Path, undisturbed: Path) -> None:
    flip(parts(copied, "judge")[0])
    result = run(again(copied, undisturbed, "select.selectors=[max]"))
    assert (calls(result), reused_calls(result)["judge"]) == (NOTHING, CALLS["judge"] // len(REQUESTS))


def test_a_part_whose_answers_are_lost_too_is_asked_for_again(copied: Path, undisturbed: Path) -> None:
    shutil.rmtree(copied / "run" / "calls")
    tear(parts(copied, "judge")[2])
    next((copied / "run" / "coverage.parquet").glob("shard-10*")).unlink()
    result = run(again(copied, undisturbed))
    assert run_bytes(copied / "run") == run_bytes(undisturbed / "run")
    assert calls(result) == {"decompose": 0, "judge": CALLS["judge"] // len(REQUESTS)}


@pytest.mark.parametrize("killed_in_between", [False, True])
def test_ratings_of_other_sub_questions_are_not_taken_over(
    served: Served, tmp_path: Path, *, killed_in_between: bool
) -> None:
    """A decomposition that is made again may come out differently; the ratings of the first one are not its ratings."""
    questions = "first"

    def decomposing(request: Request) -> Reply | None:
        lines = [f"{i}. Is this the question number {i} of the {questions} answer?" for i in (1, 2)]
        return None if "<document>" in request.prompt else completion("\n".join(lines), usage=None)

    served.rater.fault = decomposing
    config = served.config("decompose={source: llm, n: 2}", "limits.failed_queries=1")
    run(config)
    assert all("first" in row["sub_question"] for row in served.coverage())

    questions = "other"
    shutil.rmtree(served.folder / "run" / "calls")
    for part in parts(served.folder, "decompose"):
        part.unlink()
    if killed_in_between:  # when the new decomposition was committed, and before the old ratings were touched
        run(config.model_copy(update={"output": f"{tmp_path}/other"}))
        for part in (tmp_path / "other" / "parts").glob("decompose-*/*"):
            shutil.copy(part, served.folder / "run" / part.relative_to(tmp_path / "other"))
        shutil.rmtree(served.folder / "run" / "coverage.parquet")
    served.rater.asked.clear()
    run(config)
    rows = served.coverage()
    assert all("other" in row["sub_question"] for row in rows)
    judged = Counter(prompt for prompt in served.rater.asked.elements() if "<document>" in prompt)
    assert judged.total() == len(rows), "every pair was judged with the question that stands beside it"
    assert all("other" in prompt for prompt in judged)


# What a change costs


def test_a_changed_prompt_runs_its_stage_again_and_says_why(copied: Path, undisturbed: Path) -> None:
    said: list[str] = []
    result = run(again(copied, undisturbed, "judge.with_request=false"), say=said.append)
    assert calls(result) == {"decompose": 0, "judge": CALLS["judge"]}
    assert {s.stage: s.reused_queries for s in result.stages} == {
        "retrieve": 4,
        "decompose": 4,
        "judge": 0,
        "select": 0,
    }
    assert any(line.startswith("judge: runs again, because ") and "with_request" in line for line in said)
    back = run(again(copied, undisturbed))
    assert calls(back) == NOTHING, "going back costs nothing"
    assert run_bytes(copied / "run") == run_bytes(undisturbed / "run")


def test_a_fixed_reader_reads_the_stored_answers_again(
    copied: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "VERSION", judge.VERSION + 1)
    result = run(again(copied, undisturbed))
    assert calls(result) == NOTHING
    assert reused_calls(result) == {"decompose": 0, "judge": CALLS["judge"]}


def test_an_added_query_pays_for_itself_only(undisturbed: Path, copied: Path) -> None:
    for name in ("requests.jsonl", "corpus.jsonl", "first.run", "sub_questions.jsonl", "config.yaml"):
        shutil.copy(undisturbed / name, copied / name)
    with (copied / "requests.jsonl").open("a") as file:
        file.write(json.dumps({"query_id": "q5", "text": "the fish in the lake"}) + "\n")
    with (copied / "first.run").open("a") as file:
        file.writelines(f"q5 Q0 {d} {i} {20 - i}.0 first\n" for i, d in enumerate("abc", start=1))
    inputs = [f"{key}={copied}/{name}" for key, name in (("requests", "requests.jsonl"), ("retrieve.run", "first.run"))]
    result = run(again(copied, undisturbed, *inputs))
    assert calls(result) == {"decompose": 1, "judge": 3 * N}
    before, after = (read_run(f / "run" / "run.trec").rankings for f in (undisturbed, copied))
    assert after.pop("q5")
    assert after == before


def test_runs_that_share_a_store_pay_once(undisturbed: Path, tmp_path: Path) -> None:
    def config(name: str, *overrides: str) -> Config:
        return again(tmp_path / name, undisturbed, f"store={tmp_path}/store", *overrides)

    assert calls(run(config("first"))) == CALLS
    other = run(config("second", "select.selectors=[max]", "retrieve.depth=5", "shard_queries=4"))
    assert calls(other) == NOTHING
    assert reused_calls(other) == {"decompose": 4, "judge": CALLS["judge"] * 5 // len(DOCUMENTS)}
