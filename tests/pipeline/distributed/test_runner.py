"""What a run does to its folder before and after its work, without Ray; whole runs are in test_run and test_fault*."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lancer.errors import EngineError, LancerError, OutputError, StorageError, UsageError
from lancer.pipeline import finish
from lancer.pipeline.budget import Budget
from lancer.pipeline.distributed import runner
from lancer.pipeline.distributed.watch import Watch
from lancer.pipeline.lease import Lease, leased, session_uri, take
from lancer.pipeline.resume import Mode, find_work
from lancer.pipeline.summary import RunResult
from lancer.storage import Storage, StorageConfig
from tests.pipeline.folders import RunMaker
from tests.pipeline.small import small_config


def silent(line: str) -> None:
    pass


@pytest.mark.parametrize(
    ("mode", "message"), [("resume", "holds another run"), ("fail-if-exists", "holds a run already")]
)
def test_a_run_that_ended_while_this_one_waited_for_the_folder_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode, message: str
) -> None:
    config = small_config(tmp_path)
    folder = Path(config.output)
    others = {"run.json": '{"status": "finished", "inputs": {"documents": "others"}}', "ranking.parquet/x.parquet": "x"}

    @contextlib.contextmanager
    def after_another(storage: Storage, root: str, say: Callable[[str], None]) -> Iterator[Lease]:
        for name, content in others.items():
            storage.write(str(folder / name), content.encode())
        with leased(storage, root, say) as lease:
            yield lease

    monkeypatch.setattr(runner, "leased", after_another)
    with pytest.raises(OutputError, match=message):
        runner.run(config, mode=mode)
    assert {name: (folder / name).read_text() for name in others} == others


def stale(run: RunMaker) -> Path:
    """A final table of another plan."""
    file = Path(run.store.uri("ranking.parquet", "other.parquet"))
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    return file


def complete(run: RunMaker, lease: Lease) -> list[str]:
    result = RunResult(run.store.root, run.plan.inputs.table.num_rows)
    return runner._complete(run.plan, run.store, find_work(run.plan, run.store), lease, result, silent)


def test_who_has_just_lost_the_folder_removes_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_compute", lambda *given: None)
    run = RunMaker(tmp_path)
    file, lease = stale(run), take(run.storage, run.store.root, silent)
    run.storage.create(session_uri(run.store.root, 2), b"{}")  # no heartbeat has seen it yet
    with pytest.raises(OutputError, match=r"another session \(2\) has taken .* over"):
        complete(run, lease)
    assert file.exists()


def test_who_loses_the_folder_while_rankings_are_collected_leaves_the_run_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_compute", lambda *given: None)
    run = RunMaker(tmp_path)
    lease = take(run.storage, run.store.root, silent)
    run.storage.write(run.store.uri("run.trec"), b"theirs")
    taken = session_uri(run.store.root, 2)
    monkeypatch.setattr(finish, "remove_stale", lambda *given: run.storage.create(taken, b"{}"))
    with pytest.raises(OutputError, match="has taken"):
        complete(run, lease)
    assert Path(run.store.uri("run.trec")).read_bytes() == b"theirs"


class Flaky(Storage):
    """A store that goes down."""

    down = False

    def write(self, uri: str, data: bytes) -> None:
        if Flaky.down:
            raise StorageError("refused with 503")
        super().write(uri, data)


@pytest.mark.parametrize(("ended", "raised"), [(KeyboardInterrupt(), KeyboardInterrupt), (None, StorageError)])
def test_how_a_run_ended_is_not_hidden_by_a_store_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: BaseException | None, raised: type[BaseException]
) -> None:
    def complete(*given: Any) -> list[str]:
        monkeypatch.setattr(Flaky, "down", True)
        if ended:
            raise ended
        return []

    monkeypatch.setattr(runner, "Storage", Flaky)
    monkeypatch.setattr(runner, "_complete", complete)
    config = small_config(tmp_path)
    with pytest.raises(raised):
        runner.run(config)
    assert json.loads((Path(config.output) / "run.json").read_text())["status"] == "running"


def test_what_was_to_be_retried_still_is_after_a_damaged_file_and_once(tmp_path: Path) -> None:
    RunMaker(tmp_path)
    questions = tmp_path / "sub_questions.jsonl"
    lines = questions.read_text().splitlines(keepends=True)
    questions.write_text("".join(line for line in lines if '"q3"' not in line))
    run = RunMaker(tmp_path, "shard_queries=1")
    for shard in run.plan.shards:
        run.shard(shard)
    of_q3 = next(s.id for s in run.plan.shards if s.table["query_id"].to_pylist() == ["q3"])
    work = find_work(run.plan, run.store, retry_failed=True)
    again = {("decompose", of_q3), ("judge", of_q3), ("select", of_q3)}
    assert work.parts.keys() - work.done == again

    left = runner._left(run.plan, run.store, work, ())
    assert left.parts.keys() - left.done == again
    assert of_q3 in {s.id for s in left.todo}
    once_more = runner._left(run.plan, run.store, left, ())
    assert once_more.done == left.done
    over = runner._left(run.plan, run.store, work, {of_q3})
    assert over.parts.keys() == over.done, "it has failed again, which is no reason to pay again"


class Starting:
    """An engine pool that never gets ready."""

    def __init__(self, name: str, config: Any, *given: Any, **options: Any) -> None:
        self.name, self.config = name, config

    def wait_until_started(self, checks: Sequence[Callable[[], None]]) -> None:
        while True:
            time.sleep(0.02)
            for check in checks:
                check()

    def kill(self) -> None:
        pass


@pytest.mark.parametrize(
    ("lost", "error", "message"), [(False, EngineError, "'llm' has not started in"), (True, OutputError, "taken over")]
)
def test_a_start_that_hangs_ends_and_so_does_one_without_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool, error: type[LancerError], message: str
) -> None:
    monkeypatch.setattr(runner, "EnginePool", Starting)
    run = RunMaker(tmp_path, "limits.startup_s=0.5")
    lease = take(run.storage, run.store.root, silent)
    lease.lost = "taken over" if lost else ""
    work = find_work(run.plan, run.store)
    watch = Watch(run.plan, run.store, RunResult("", 4), Budget(run.config, run.plan.engines, []))
    checks = (lease.check, watch.check_budget)
    with pytest.raises(error, match=message), runner._pools(run.plan, work, run.storage, watch, checks, silent):
        pass


def test_the_forecast_is_compared_by_the_runs_own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[StorageConfig] = []
    monkeypatch.setattr(runner, "_complete", lambda *given: [])
    monkeypatch.setattr(runner, "compare_kept", lambda run: seen.append(run.store.storage.config))
    config = small_config(tmp_path, "storage.region=eu-north-1", "storage.path_style=false")
    Storage().write(f"{config.output}/estimate.json", b"{}")
    runner.run(config)
    assert seen == [config.storage]


@pytest.mark.parametrize("output", ["s3://", "s3:///run"])
def test_an_output_without_a_bucket_is_refused_before_anything_starts(tmp_path: Path, output: str) -> None:
    with pytest.raises(UsageError, match=rf"^{output}: not an object-store URI; allowed: s3://bucket/key"):
        runner.run(small_config(tmp_path, f"output={output}"))
    assert not Path("s3:").exists()
