"""`lancer status` on run folders in every state, from the listing alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from lancer.cli import main
from lancer.engines.protocols import EngineClock
from lancer.errors import InputError, OutputError
from lancer.pipeline import folder
from lancer.pipeline.attempts import Attempts
from lancer.pipeline.folder import SHARDS
from lancer.pipeline.lease import session_uri
from lancer.pipeline.plan import Shard
from lancer.pipeline.status import Status, StatusReader
from lancer.pipeline.status_tables import render_status
from lancer.storage import Storage, StorageConfig
from tests.pipeline.folders import RunMaker, ago
from tests.pipeline.small import REQUESTS
from tests.s3_servers import S3Server

STAGES = ["retrieve", "decompose", "judge", "select"]


def status(root: str, endpoint: str | None = None) -> Status:
    return StatusReader(root, endpoint).read()


def text(found: Status) -> str:
    console = Console(width=200, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(render_status(found))
    return capture.get()


@pytest.fixture
def run(tmp_path: Path) -> RunMaker:
    """Four queries, a shard for each but for what their hashes say; two shards in flight."""
    return RunMaker(tmp_path, "shard_queries=1", "ray.workers=2")


def sizes(run: RunMaker) -> list[int]:
    return [shard.table.num_rows for shard in run.plan.shards]


def in_work(run: RunMaker, *shards: Shard) -> None:
    """What workers that begin with these shards leave."""
    for shard in shards:
        Attempts.of(run.storage, run.store.root, shard.id, 2).begin()


def test_a_run_going_on(run: RunMaker) -> None:
    run.begin()
    run.session()
    first, second, *_, last = run.plan.shards
    run.shard(first)
    run.shard(second, stages=2)
    in_work(run, first, second, last)
    found = status(run.store.root)
    n1, n2, *others, n3 = sizes(run)
    left = sum(others)
    assert (found.status, found.queries, found.finished) == ("running", len(REQUESTS), n1)
    assert [(s.stage, s.done, s.running, s.failed, s.to_do) for s in found.stages] == [
        ("retrieve", n1 + n2, n3, 0, left),
        ("decompose", n1 + n2, 0, 0, n3 + left),
        ("judge", n1, n2, 0, n3 + left),
        ("select", n1, 0, 0, n2 + n3 + left),
    ]
    assert found.session is not None
    assert (found.session.session, found.session.pid, found.session.alive) == (1, os.getpid(), True)


def test_rates_are_of_this_session_lately_and_overall(run: RunMaker) -> None:
    run.begin()
    token = run.session()
    run.change(token, started=ago(600), heartbeat=ago(0))
    now, done = time.time(), run.plan.shards[:3]
    for shard, age in zip(done, (2000, 400, 100), strict=True):  # the first by an earlier session
        for uri in run.shard(shard):
            os.utime(uri, (now - age, now - age))
    found = status(run.store.root)
    n1, n2, n3, *others = sizes(run)
    assert found.finished == n1 + n2 + n3
    assert found.rate.overall == pytest.approx((n2 + n3) / 10, rel=0.02)
    assert found.rate.recent == pytest.approx(n3 / 5, rel=0.02)
    assert found.eta_s == pytest.approx(sum(others) / (n3 / 300), rel=0.02)
    assert "ETA" in text(found)


def test_failed_queries_and_the_last_failures(tmp_path: Path) -> None:
    RunMaker(tmp_path)
    questions = tmp_path / "sub_questions.jsonl"
    lines = questions.read_text().splitlines(keepends=True)
    questions.write_text("".join(line for line in lines if '"q3"' not in line))
    first = tmp_path / "first.run"
    first.write_text(first.read_text() + "q1 Q0 unknown 9 1.0 first\n")
    run = RunMaker(tmp_path, "shard_queries=1", "retrieve.depth=9")
    run.begin()
    run.session()
    of = {q: s for s in run.plan.shards for q in s.table["query_id"].to_pylist()}
    run.shard(of["q1"])
    os.utime(next((tmp_path / "run" / "failures.parquet").iterdir()), (1e9, 1e9))
    run.shard(of["q3"], stages=2)
    reader = StatusReader(run.store.root)
    found = reader.read()
    assert {s.stage: s.failed for s in found.stages} == {"retrieve": 0, "decompose": 1, "judge": 0, "select": 0}
    assert [(f.query_id, f.stage, f.reason) for f in found.failures] == [
        ("q3", "decompose", "no_sub_questions"),
        ("q1", "retrieve", "no_text"),
    ]
    assert found.failures[1].written == "2001-09-09T01:46:40+00:00"
    assert "q3  no_sub_questions: the sub-question file has none for this query" in text(found)
    assert reader.read().failures == found.failures


def test_a_finished_run_without_failures_reads_none_of_its_tables(run: RunMaker) -> None:
    run.begin("finished")
    run.session(status="finished")
    for shard in run.plan.shards:
        run.shard(shard)
    for path in (Path(run.store.root) / "failures.parquet").iterdir():
        path.write_bytes(b"x" * path.stat().st_size)
    found = status(run.store.root)
    assert (found.status, found.finished, found.failures) == ("finished", len(REQUESTS), [])
    assert [(s.done, s.running, s.to_do) for s in found.stages] == [(len(REQUESTS), 0, 0)] * 4
    assert found.eta_s is None
    assert found.rate.recent is None


def _dead_process(record: dict[str, object]) -> float:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    record["pid"] = gone.pid
    return 0


def _silent(record: dict[str, object]) -> float:
    record.update(host="elsewhere", started=ago(100), heartbeat=ago(60))
    return 60


def _far(record: dict[str, object]) -> float:
    record.update(host="elsewhere", started=ago(100), heartbeat=ago(8))
    return 8


def _far_with_a_slow_clock(record: dict[str, object]) -> float:
    record.update(host="elsewhere", started=ago(4000), heartbeat=ago(3608))
    return 8


def _silent_with_a_fast_clock(record: dict[str, object]) -> float:
    record.update(host="elsewhere", started=ago(0), heartbeat=ago(-3600))
    return 60


@pytest.mark.parametrize(
    ("change", "alive", "said"),
    [
        (_dead_process, False, "killed"),
        (_silent, False, "killed"),
        (_far, True, "running"),
        (_far_with_a_slow_clock, True, "running"),
        (_silent_with_a_fast_clock, False, "killed"),
    ],
)
def test_who_carries_it_out_and_whether_he_lives(
    run: RunMaker, change: Callable[[dict[str, object]], float], alive: bool, said: str
) -> None:
    """`change` gives the seconds since the record was written."""
    run.begin()
    token = run.session()
    in_work(run, *run.plan.shards[:2])
    record: dict[str, object] = {}
    written = time.time() - change(record)
    run.change(token, **record)
    os.utime(session_uri(run.store.root, token), (written, written))
    found = status(run.store.root)
    assert found.session is not None
    assert (found.session.alive, found.session.status, found.status) == (alive, said, said)
    assert found.session.heartbeat_age_s == pytest.approx(time.time() - written, abs=2)
    assert sum(s.running for s in found.stages) == (sum(sizes(run)[:2]) if alive else 0)
    assert ("goes on from there" in text(found)) is not alive
    assert f"process {found.session.pid} on {found.session.host}" in text(found)


def test_an_interrupted_run(run: RunMaker) -> None:
    run.begin("interrupted")
    run.session(status="interrupted")
    run.shard(run.plan.shards[0])
    found = status(run.store.root)
    assert (found.status, found.finished) == ("interrupted", sizes(run)[0])
    assert found.session is not None
    assert not found.session.alive


def test_what_it_has_cost_so_far(tmp_path: Path) -> None:
    run = RunMaker(tmp_path, "prices.llm={usd_per_device_hour: 2, usd_per_million_prompt_tokens: 10}")
    run.begin()
    clock = EngineClock(startup_s=100, busy_s=1000, idle_s=700, calls=3, tokens=150_005)
    clock = replace(clock, cached_tokens=50_000, output_tokens=5)
    other = EngineClock(startup_s=0, busy_s=1700, idle_s=100, calls=3, tokens=0)
    run.session(clock, status="finished")
    run.session(other)
    found = status(run.store.root)
    assert [(s.engine, s.device_hours) for s in found.spend] == [("llm", 1.0)]
    assert found.spent.known == pytest.approx(2.0 + 1.0)
    assert "spent so far: USD 3.00 (llm 1.0000 device hours, USD 3.00)" in text(found)


def test_without_a_price_the_spend_says_so(run: RunMaker) -> None:
    run.begin()
    run.session(EngineClock(startup_s=1, busy_s=1, idle_s=1, calls=1, tokens=1))
    assert "spent so far: llm 0.0008 device hours; `prices` has nothing for llm" in text(status(run.store.root))
    assert status(run.store.root).as_dict()["spend"]["usd"] is None


def test_parts_of_other_settings_and_earlier_requests_do_not_count(tmp_path: Path) -> None:
    run = RunMaker(tmp_path)
    for shard in run.plan.shards:
        run.shard(shard)
    requests = tmp_path / "requests.jsonl"
    requests.write_text(requests.read_text().replace("the lake in the seasons", "the lake in winter"))
    changed = RunMaker(tmp_path)
    changed.begin()
    again = next(s for s in changed.plan.shards if "q2" in s.table["query_id"].to_pylist())
    judge = next(s for s in status(changed.store.root).stages if s.stage == "judge")
    assert judge.done == len(REQUESTS) - again.table.num_rows
    other = RunMaker(tmp_path, "judge.max_tokens=4")
    other.begin()
    assert [s.done for s in status(other.store.root).stages] == [4, 4, 0, 0]


def test_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"is no run folder: no run\.json"):
        status(str(tmp_path))
    run = RunMaker(tmp_path)
    run.session()
    with pytest.raises(InputError, match="a run is only beginning here"):
        status(run.store.root)
    run.begin()
    (tmp_path / "run" / SHARDS).unlink()
    with pytest.raises(OutputError, match=r"has no shards\.parquet"):
        status(run.store.root)
    assert main(["status", str(tmp_path / "none")]) == 3
    assert f"lancer: {tmp_path}/none: is no run folder" in capsys.readouterr().err


def test_watching_ends_with_the_run(run: RunMaker) -> None:
    run.begin()
    token = run.session()
    seen = []
    for found in StatusReader(run.store.root).watch(0.01):
        seen.append(found.status)
        if len(seen) == 2:
            run.begin("finished")
            run.change(token, status="finished")
    assert seen == ["running", "running", "finished"]


def test_watching_takes_a_number_of_seconds(run: RunMaker, capsys: pytest.CaptureFixture[str]) -> None:
    run.begin("finished")
    assert main(["status", run.store.root, "--watch", "5"]) == 0
    for wrong in ("0", "-1", "soon", "inf"):
        with pytest.raises(SystemExit):
            main(["status", run.store.root, "--watch", wrong])
        assert "allowed: a number of seconds above 0" in capsys.readouterr().err


def test_from_another_process_without_ray(run: RunMaker) -> None:
    run.begin()
    run.session()
    run.shard(run.plan.shards[0])
    code = "import sys; from lancer.cli import main; main(sys.argv[1:]); assert 'ray' not in sys.modules"
    command = [sys.executable, "-c", code, "status", run.store.root, "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["finished"] == sizes(run)[0]
    assert [s["stage"] for s in found["stages"]] == STAGES
    assert found["session"]["pid"] == os.getpid()


@pytest.mark.s3
def test_on_an_object_store(
    tmp_path: Path, s3_server: S3Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"s3://{s3_server.create_bucket()}/campaign/run"
    storage = Storage(StorageConfig(endpoint_override=s3_server.endpoint))
    run = RunMaker(tmp_path, f"output={root}", "shard_queries=1", storage=storage)
    with pytest.raises(InputError, match="is no run folder"):
        status(root, s3_server.endpoint)
    run.begin()
    token = run.session(started=ago(60))
    run.shard(run.plan.shards[0])
    assert main(["status", root, "--endpoint", s3_server.endpoint, "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    n1 = sizes(run)[0]
    assert (found["status"], found["finished"]) == ("running", n1)
    assert found["rate"]["recent"] == pytest.approx(n1, rel=0.1)
    run.change(token, host="elsewhere", heartbeat=ago(60), started=ago(90))
    assert status(root, s3_server.endpoint).status == "running", "by the store's clock it was written just now"
    monkeypatch.setattr(folder, "DEAD_S", 1.0)
    time.sleep(3)  # the store's times are whole seconds
    assert status(root, s3_server.endpoint).status == "killed"
    assert storage.exists(session_uri(root, token))
