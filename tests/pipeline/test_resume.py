"""What of an output folder stays, what has to be made again, and what is said about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lancer import schema
from lancer.errors import OutputError
from lancer.pipeline import finish
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.lease import session_uri
from lancer.pipeline.plan import Plan, Shard, make_plan
from lancer.pipeline.resume import (
    QUERIES,
    check_same_run,
    find_work,
    input_record,
    journal_files,
    lines_on_reuse,
    open_output,
    query_digests,
)
from lancer.pipeline.store import TABLES, RunStore, parquet_bytes, part_schema
from lancer.pipeline.summary import RunResult
from lancer.prompts import decompose, judge
from lancer.stages.records import Failure
from lancer.storage import Storage
from tests.pipeline.judged import judged_config
from tests.pipeline.small import REQUESTS

STAGES = ["retrieve", "decompose", "judge", "select"]


@dataclass
class Folder:
    """A run folder as a run leaves it, with parts that hold nothing: here only names count."""

    path: Path

    @property
    def store(self) -> RunStore:
        return RunStore(Storage(), str(self.path / "run"))

    def plan(self, *overrides: str, shard_bits: int | None = None) -> Plan:
        config = judged_config(self.path, *overrides)
        return make_plan(config, read_inputs(config, Storage()), Storage(), shard_bits=shard_bits)

    def finish(self, plan: Plan, failures: Sequence[tuple[str, str]] = (), reason: str = "error") -> dict[str, Any]:
        """All parts and tables of a plan; (stage, shard) in `failures` get a failure record. Returns run.json."""
        for shard in plan.shards:
            for stage in plan.stages:
                own = reason if (stage.name, shard.id) in failures else ""
                self.part(plan, stage.name, shard.id, reason=own)
            for table in TABLES:
                content = shard.table.select(["query_id"])
                if table == "failures.parquet":
                    failed = [failure(shard, stage) for stage, shard_id in failures if shard_id == shard.id]
                    content = pa.Table.from_pylist(failed, schema.FAILURE_SCHEMA)
                self.store.write_table(self.store.uri(table, finish.final_name(plan, shard)), content)
        self.store.storage.write(self.store.uri(QUERIES), parquet_bytes(query_digests(plan)))
        record = {
            "inputs": input_record(plan),
            "shard_bits": plan.shard_bits,
            "stages": [{"name": s.name, "fingerprint": s.fingerprint, "identity": s.identity} for s in plan.stages],
        }
        self.store.write_json(record)
        return record

    def part(self, plan: Plan, name: str, shard_id: str, *, reason: str = "") -> str:
        stage = next(s for s in plan.stages if s.name == name)
        shard = next(s for s in plan.shards if s.id == shard_id)
        failures = [failure(shard, name, reason)] if reason else []
        row = {"query_id": shard.table["query_id"][0].as_py(), "failures": failures}
        empty = {f.name: "" if str(f.type) == "string" else [] for f in part_schema(stage)}
        part = pa.Table.from_pylist([empty | row], schema=part_schema(stage))
        return self.store.write_table(self.store.part(stage, shard), part)


def failure(shard: Shard, stage: str, reason: str = "error") -> dict[str, Any]:
    return Failure(query_id=shard.table["query_id"][0].as_py(), stage=stage, reason=reason, detail="x").row()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def todo(plan: Plan, folder: Folder, **options: bool) -> dict[str, list[str]]:
    """Query → the stages that run for it, of the queries that are not finished."""
    work = find_work(plan, folder.store, **options)
    return {
        query_id: [s.name for s in plan.stages if (s.name, shard.id) not in work.done]
        for shard in work.todo
        for query_id in shard.table["query_id"].to_pylist()
    }


def without(query_id: str) -> list[str]:
    return sorted(REQUESTS.keys() - {query_id})


# What is there


def test_a_new_folder_has_everything_to_do(folder: Folder) -> None:
    plan = folder.plan()
    assert open_output(folder.store, "resume") is None
    assert todo(plan, folder) == dict.fromkeys(["q4", "q3", "q2", "q1"], STAGES)


def test_a_finished_run_has_nothing_to_do(folder: Folder) -> None:
    plan = folder.plan()
    folder.finish(plan)
    assert todo(plan, folder) == {}
    assert find_work(plan, folder.store).needs("judge") is False


def test_a_lost_part_is_made_again_and_nothing_else(folder: Folder) -> None:
    plan = folder.plan()
    folder.finish(plan)
    shard = next(s for s in plan.shards if s.table["query_id"].to_pylist() == ["q2"])
    work = find_work(plan, folder.store)
    Path(work.parts["judge", shard.id]).unlink()
    assert todo(plan, folder) == {"q2": ["judge"]}


@pytest.mark.parametrize("table", TABLES)
def test_lost_final_tables_are_made_again_from_the_parts(folder: Folder, table: str) -> None:
    plan = folder.plan()
    folder.finish(plan)
    next(p for p in (folder.path / "run" / table).iterdir() if "shard-00" in p.name).unlink()
    assert todo(plan, folder) == {"q4": []}


def test_temporary_files_of_a_killed_process_are_no_parts(folder: Folder) -> None:
    plan = folder.plan()
    folder.finish(plan)
    work = find_work(plan, folder.store)
    part = Path(work.parts["select", plan.shards[0].id])
    part.rename(part.with_name(".lancer-tmp-123"))
    assert todo(plan, folder) == {"q4": ["select"]}


# What a change invalidates


@pytest.mark.parametrize(
    ("override", "again", "why"),
    [
        ("judge.seed=1", STAGES[2:], "settings.seed: 0 → 1"),
        ("judge.with_request=false", STAGES[2:], "settings.with_request: True → False"),
        ("decompose.temperature=0.5", STAGES[1:], "settings.temperature: 0.0 → 0.5"),
        ("select.selectors=[max]", STAGES[3:], "settings.selectors[0]: sum(tau=1) → max"),
        ("retrieve.depth=5", [STAGES[0], *STAGES[2:]], "settings.depth: 8 → 5"),
        ("engines.llm.seed=7", STAGES[1:], "engines[0].seed: 0 → 7"),
    ],
)
def test_a_changed_setting_runs_its_stage_and_what_reads_it(
    folder: Folder, override: str, again: list[str], why: str
) -> None:
    before = folder.finish(folder.plan())
    plan = folder.plan(override)
    assert todo(plan, folder) == dict.fromkeys(["q4", "q3", "q2", "q1"], again)
    lines = list(lines_on_reuse(plan, find_work(plan, folder.store), before))
    reasons = {line.split(":")[0]: line for line in lines if "runs again" in line}
    assert list(reasons) == again
    assert why in reasons[again[0]], reasons[again[0]]
    kept = [line for line in lines if line.endswith("4 of 4 queries are there already")]
    assert [line.split(":")[0] for line in kept] == [s for s in STAGES if s not in again]


def test_a_changed_prompt_runs_its_stage_and_what_reads_it(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    before = folder.finish(folder.plan())
    render = decompose.render
    monkeypatch.setattr(decompose, "render", lambda **fields: [*render(**fields), {"role": "user", "content": "Now."}])
    plan = folder.plan()
    assert todo(plan, folder)["q1"] == STAGES[1:]
    lines = list(lines_on_reuse(plan, find_work(plan, folder.store), before))
    assert any(line.startswith("decompose: runs again, because settings.prompt: ") for line in lines)
    assert any(line.startswith("judge: runs again, because reads.sub_questions: ") for line in lines)


def test_a_fixed_reader_runs_its_stage_over_the_same_calls(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    before = folder.plan()
    folder.finish(before)
    monkeypatch.setattr(judge, "VERSION", judge.VERSION + 1)
    plan = folder.plan()
    assert todo(plan, folder)["q1"] == STAGES[2:]
    assert plan.engines == before.engines, "what was answered lies where it lay"


def test_a_changed_corpus_runs_what_reads_documents(folder: Folder) -> None:
    before = folder.finish(folder.plan())
    corpus = folder.path / "corpus.jsonl"
    corpus.write_text(corpus.read_text().replace("forty metres", "fifty metres"))
    plan = folder.plan()
    check_same_run(plan, folder.store, before)
    assert todo(plan, folder)["q1"] == [STAGES[0], *STAGES[2:]]
    assert any("documents: " in line for line in lines_on_reuse(plan, find_work(plan, folder.store), before))


# Queries that come and go


def test_an_added_query_costs_only_itself(folder: Folder) -> None:
    before = folder.finish(folder.plan())
    for name, line in (
        ("requests.jsonl", json.dumps({"query_id": "q5", "text": "the fish in the lake"})),
        ("first.run", "q5 Q0 a 1 2.0 first\nq5 Q0 b 2 1.0 first"),
    ):
        file = folder.path / name
        file.write_text(f"{file.read_text()}{line}\n")
    plan = folder.plan(shard_bits=before["shard_bits"])
    check_same_run(plan, folder.store, before)
    again = todo(plan, folder)
    shard = next(s.table["query_id"].to_pylist() for s in plan.shards if "q5" in s.table["query_id"].to_pylist())
    assert again.keys() == set(shard), "those that share its shard are read from the journal again"
    assert len(again) < 5


def test_a_removed_query_leaves_the_others_alone(folder: Folder) -> None:
    before = folder.finish(folder.plan())
    file = folder.path / "requests.jsonl"
    file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if '"q3"' not in line))
    plan = folder.plan(shard_bits=before["shard_bits"])
    check_same_run(plan, folder.store, before)
    assert todo(plan, folder) == {}
    finish.remove_stale(plan, folder.store)
    left = [p.name for p in (folder.path / "run" / "ranking.parquet").iterdir()]
    assert len(left) == 3, "its rankings go, its parts stay"


def test_a_changed_request_is_another_query(folder: Folder) -> None:
    before = folder.finish(folder.plan())
    file = folder.path / "requests.jsonl"
    file.write_text(file.read_text().replace("a history of the bridge", "the bridge since 1820"))
    plan = folder.plan(shard_bits=before["shard_bits"])
    check_same_run(plan, folder.store, before)
    assert todo(plan, folder) == {"q3": STAGES[1:]}, "a given first stage does not read the text"


def test_given_candidates_belong_to_their_query(folder: Folder) -> None:
    folder.finish(folder.plan())
    file = folder.path / "first.run"
    file.write_text(file.read_text().replace("q2 Q0 a 1 19.0", "q2 Q0 a 1 1.5"))
    assert todo(folder.plan(), folder) == {"q2": ["retrieve", "judge", "select"]}


# Failures


def test_failures_stay_until_they_are_to_be_retried(folder: Folder) -> None:
    plan = folder.plan()
    folder.finish(plan, failures=[("judge", plan.shards[1].id), ("decompose", plan.shards[2].id)])
    assert todo(plan, folder) == {}
    assert todo(plan, folder, retry_failed=True) == {"q3": STAGES[2:], "q2": STAGES[1:]}


def test_only_shards_with_failures_are_read(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = folder.plan()
    failed = plan.shards[1]
    folder.finish(plan, failures=[("judge", failed.id)])
    opened: list[str] = []
    read = Storage.read

    def noted(storage: Storage, uri: str) -> bytes:
        opened.append(uri)
        return read(storage, uri)

    monkeypatch.setattr(Storage, "read", noted)
    work = find_work(plan, folder.store)
    result = RunResult(folder.store.root, 4)
    result.count_reused(plan, work, folder.store)
    assert opened == [work.parts[stage, failed.id] for stage in STAGES]
    assert [(t.stage, t.queries, t.reused_queries, t.counted_queries) for t in result.stages] == [
        (stage, 4, 4, 1) for stage in STAGES
    ]
    assert result.stages[2].failures == {"error": 1}
    opened.clear()
    find_work(plan, folder.store, retry_failed=True)
    assert sorted(opened) == sorted(work.parts[stage, failed.id] for stage in STAGES)


@pytest.mark.parametrize(
    ("reason", "again"), [("unreadable", ["q3"]), ("too_few", ["q3"]), ("poison", []), ("engine_error", [])]
)
def test_a_retry_knows_for_whom_an_answer_must_not_do_again(folder: Folder, reason: str, again: list[str]) -> None:
    plan = folder.plan()
    failed = plan.shards[1].id
    folder.finish(plan, failures=[("judge", failed)], reason=reason)
    assert find_work(plan, folder.store).retry == {}
    work = find_work(plan, folder.store, retry_failed=True)
    assert work.retry == {("judge", failed): again, ("select", failed): []}


def test_a_damaged_part_of_a_shard_with_failures_is_made_again(folder: Folder) -> None:
    plan = folder.plan()
    folder.finish(plan, failures=[("judge", plan.shards[1].id)])
    part = Path(find_work(plan, folder.store).parts["decompose", plan.shards[1].id])
    part.write_bytes(part.read_bytes()[:-9])
    assert todo(plan, folder, retry_failed=True) == {"q3": STAGES[1:]}


def test_without_failures_there_is_nothing_to_retry(folder: Folder) -> None:
    plan = folder.plan()
    folder.finish(plan)
    assert todo(plan, folder, retry_failed=True) == {}


# Journals


def test_a_shard_is_given_the_journals_that_may_hold_its_calls(folder: Folder) -> None:
    plan = folder.plan()
    calls = folder.path / "run" / "calls" / plan.engines["llm"]
    calls.mkdir(parents=True)
    for prefix in ("all", "0", "01", "011", "10", "11"):
        (calls / f"{prefix}-writer-0000-digest.parquet").touch()
    files = journal_files(plan, folder.store, find_work(plan, folder.store))
    prefixes = {shard: sorted(Path(f).name.split("-")[0] for f in of["llm"]) for shard, of in files.items()}
    assert prefixes == {
        "00": ["0", "all"],
        "01": ["0", "01", "011", "all"],
        "10": ["10", "all"],
        "11": ["11", "all"],
    }


def test_a_shared_store_holds_the_journals(folder: Folder) -> None:
    plan = folder.plan(f"store={folder.path}/shared")
    calls = folder.path / "shared" / "calls" / plan.engines["llm"]
    calls.mkdir(parents=True)
    (calls / "all-writer-0000-digest.parquet").touch()
    files = journal_files(plan, folder.store, find_work(plan, folder.store))
    assert len(files) == len(plan.shards)
    assert all(len(of["llm"]) == 1 for of in files.values())


# Folders that are no run of these requests


def test_a_folder_of_something_else_is_left_alone(folder: Folder) -> None:
    folder.store.storage.write(folder.store.uri("thesis.txt"), b"mine")
    with pytest.raises(OutputError, match=r"holds files, but no run\.json: it is no run folder; choose another"):
        open_output(folder.store, "overwrite")


@pytest.mark.parametrize("mode", ["resume", "overwrite"])
def test_a_run_that_was_killed_before_it_wrote_run_json_can_go_on(folder: Folder, mode: Any) -> None:
    folder.plan()
    folder.store.storage.write(session_uri(folder.store.root, 1), b"{}")
    assert open_output(folder.store, mode) is None


def test_an_overwrite_that_was_killed_half_way_can_go_on(folder: Folder) -> None:
    folder.finish(folder.plan())
    folder.store.clear(keep=session_uri(folder.store.root, 2))
    folder.store.storage.write(session_uri(folder.store.root, 2), b"{}")
    folder.part(folder.plan(), "judge", "00")
    assert open_output(folder.store, "resume") is None


def test_a_run_that_is_there_is_gone_on_with_replaced_or_refused(folder: Folder) -> None:
    record = folder.finish(folder.plan())
    assert open_output(folder.store, "resume") == record
    assert open_output(folder.store, "overwrite") is None
    with pytest.raises(OutputError, match="holds a run already"):
        open_output(folder.store, "fail-if-exists")


def test_a_damaged_run_json_is_named_and_can_be_overwritten(folder: Folder) -> None:
    folder.finish(folder.plan())
    (folder.path / "run" / "run.json").write_text('{"inputs": {')
    with pytest.raises(OutputError, match=r"run\.json is not JSON"):
        open_output(folder.store, "resume")
    assert open_output(folder.store, "overwrite") is None


def test_another_corpus_is_another_run(folder: Folder) -> None:
    before = folder.finish(folder.plan())
    (folder.path / "other.jsonl").write_text((folder.path / "corpus.jsonl").read_text().replace("pike", "eels"))
    with pytest.raises(OutputError, match=r"holds another run: its documents come from corpus .*corpus\.jsonl, now"):
        check_same_run(folder.plan(f"corpus={folder.path}/other.jsonl"), folder.store, before)


def test_the_same_corpus_under_another_path_is_the_same_run(folder: Folder) -> None:
    before = folder.finish(folder.plan())
    moved = folder.path / "mounted elsewhere" / "corpus.jsonl"
    moved.parent.mkdir()
    moved.write_text((folder.path / "corpus.jsonl").read_text())
    plan = folder.plan(f"corpus={moved}")
    check_same_run(plan, folder.store, before)
    assert todo(plan, folder) == {}


def test_other_requests_are_another_run(folder: Folder) -> None:
    before = folder.finish(folder.plan())
    for name in ("requests.jsonl", "first.run"):
        file = folder.path / name
        file.write_text(file.read_text().replace('"q', '"other').replace("q", "other"))
    file = folder.path / "requests.jsonl"
    file.write_text(file.read_text().replace("othereuery_id", "query_id").replace("otheruery_id", "query_id"))
    with pytest.raises(OutputError, match="none of its requests is among these"):
        check_same_run(folder.plan(), folder.store, before)


def test_a_damaged_list_of_requests_is_no_obstacle(folder: Folder) -> None:
    before = folder.finish(folder.plan())
    (folder.path / "run" / QUERIES).write_bytes(b"PAR1 torn")
    check_same_run(folder.plan(), folder.store, before)
