"""The fault table: what may go wrong in a run on a real Ray, one test each, and what is there afterwards.

Faults that need no Ray are in test_lease (conflict, dead and lost leases), test_isolate, test_journal, test_resume,
test_store and test_limits; kills at random moments in tests/chaos.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
import ray

from lancer.config import Config
from lancer.errors import EngineError, LimitError, OutputError, StorageError
from lancer.formats.runs import read_run
from lancer.pipeline import lease
from lancer.pipeline.distributed.engine_pool import affinity
from lancer.pipeline.distributed.runner import run
from lancer.pipeline.isolate import POISON
from lancer.pipeline.lease import read_session, tokens
from lancer.pipeline.store import TABLES
from lancer.prompts import judge
from lancer.storage import Storage, StorageConfig
from tests.chaos.processes import engine_actors, kill, local_raylet, workers
from tests.http_servers import Reply, Request, completion, serving
from tests.pipeline.judged import CALLS, ENGINE, N, calls, judged_config, reused_calls, run_bytes
from tests.pipeline.small import DOCUMENTS, REQUESTS, small_config
from tests.s3_servers import S3Server

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("session_ray")]

NOTHING: Final = {"decompose": 0, "judge": 0}
POISON_TEXT: Final = REQUESTS["q2"][0]  # it stands in every judge prompt of q2
CELLS_OF_Q2: Final = len(REQUESTS["q2"][1]) * len(DOCUMENTS)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of `judged_config`; tests work on copies of its folder."""
    folder = tmp_path_factory.mktemp("undisturbed")
    result = run(judged_config(folder))
    assert calls(result) == CALLS
    return folder


@pytest.fixture
def copied(undisturbed: Path, tmp_path: Path) -> Path:
    """The run folder of `undisturbed` to disturb, beside its inputs; the config's output is `tmp_path/run`."""
    shutil.copytree(undisturbed / "run", tmp_path / "run")
    return tmp_path


def again(folder: Path, undisturbed: Path, *overrides: str) -> Config:
    """The config of `undisturbed`, with its inputs, writing into the copy."""
    return judged_config(undisturbed, f"output={folder}/run", *overrides)


# An LLM behind HTTP, whose faults a test decides


class Rater:
    """Answers judge prompts with a rating by their hash, or with what `fault` says; counts what it was asked."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.fault: Callable[[Request], Reply | None] = lambda request: None
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        with self._lock:
            self.asked[request.prompt] += 1
        usage = {"prompt_tokens": 40, "completion_tokens": 1}
        rating = str(hashlib.sha256(request.prompt.encode()).digest()[0] % 6)
        return self.fault(request) or completion(rating, usage=usage)

    @property
    def queries(self) -> Counter[str]:
        """How many prompts of each query."""
        return Counter(q for prompt in self.asked.elements() for q, (text, _) in REQUESTS.items() if text in prompt)


@dataclass
class Served:
    """A run with given sub-questions that a server rates."""

    folder: Path
    rater: Rater
    base_url: str

    def config(self, *overrides: str) -> Config:
        return small_config(
            self.folder,
            "estimate=null",
            "judge={engine: llm}",
            f"engines={{llm: {{kind: http, base_url: '{self.base_url}', model: rater, retries: 0, concurrency: 4}}}}",
            "select.selectors=[sum(tau=1)]",
            *overrides,
        )

    def coverage(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.folder / "run" / "coverage.parquet").to_pylist()
        return rows

    def failures(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.folder / "run" / "failures.parquet").to_pylist()
        return rows


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    rater = Rater()
    with serving(rater) as server:
        yield Served(tmp_path, rater, server.base_url)


def refuse(request: Request) -> Reply:
    return Reply(status=400, content=json.dumps({"error": {"message": "the prompt is too long"}}).encode())


def test_a_refused_prompt_is_one_failed_cell_and_a_retry_asks_it_alone(served: Served) -> None:
    bad = ("pike live", REQUESTS["q1"][1][1])  # a document and a sub-question
    served.rater.fault = lambda request: refuse(request) if all(text in request.prompt for text in bad) else None
    result = run(served.config())
    failed = [r for r in served.coverage() if r["status"] != "ok"]
    assert [(r["query_id"], r["doc_id"], r["sub_question_id"], r["status"]) for r in failed] == [
        ("q1", "b", "2", "error")
    ]
    assert failed[0]["rating"] is None
    record = next(f for f in served.failures() if f["query_id"] == "q1")
    assert (record["stage"], record["reason"]) == ("judge", "error")
    assert "the prompt is too long" in record["detail"]
    assert next(s for s in result.stages if s.stage == "judge").failed_cells == 1
    ranking = read_run(served.folder / "run" / "run.trec").rankings["q1"]
    assert sorted(doc_id for doc_id, _ in ranking) == sorted(DOCUMENTS), "its document is still ranked"

    served.rater.asked.clear()
    served.rater.fault = lambda request: None
    run(served.config())
    assert not served.rater.asked, "failures are not retried unless that is asked for"
    run(served.config(), retry_failed=True)
    assert [all(text in prompt for text in bad) for prompt in served.rater.asked] == [True]
    assert served.rater.asked.total() == 1
    assert {r["status"] for r in served.coverage()} == {"ok"}
    assert not served.failures()


def test_an_unreadable_answer_is_asked_for_again_by_a_retry_alone(served: Served) -> None:
    bad = ("pike live", REQUESTS["q1"][1][1])  # a document and a sub-question
    mumble = completion("well, hard to say", usage=None)
    served.rater.fault = lambda request: mumble if all(text in request.prompt for text in bad) else None
    run(served.config())
    assert [(f["query_id"], f["reason"]) for f in served.failures()] == [("q1", "unreadable")]
    served.rater.asked.clear()
    run(served.config(), retry_failed=True)
    assert served.rater.asked.total() == 1
    assert served.failures()

    served.rater.asked.clear()
    served.rater.fault = lambda request: None
    run(served.config())
    assert not served.rater.asked
    run(served.config(), retry_failed=True)
    assert [all(text in prompt for text in bad) for prompt in served.rater.asked.elements()] == [True]
    assert {r["status"] for r in served.coverage()} == {"ok"}
    assert not served.failures()
    mended = run_bytes(served.folder / "run")
    for part in parts(served.folder, "judge"):
        flip(part)
    shutil.rmtree(served.folder / "run" / "coverage.parquet")
    run(served.config())
    assert run_bytes(served.folder / "run") == mended, "and made again from the journal as the retry left it"
    assert served.rater.asked.total() == 1


def test_too_many_failures_end_a_run_and_it_can_be_mended(served: Served) -> None:
    served.rater.fault = refuse
    config = served.config("shard_queries=1", "limits.failed_cells=0.2")
    with pytest.raises(LimitError, match=r"stage 'judge': \d+ of \d+ cells failed, more than limits.failed_cells 0.2"):
        run(config)
    assert json.loads((served.folder / "run" / "run.json").read_text())["status"] == "failed"
    served.rater.fault = lambda request: None
    with pytest.raises(LimitError, match=r"\(error \d+\)"):
        run(config)  # what has failed has failed, also when others go well now
    run(config, retry_failed=True)
    assert {r["status"] for r in served.coverage()} == {"ok"}


def test_a_query_that_kills_its_engine_is_set_aside_and_others_are_rated(served: Served) -> None:
    raylet = local_raylet()
    kills: list[int] = []

    def fatal(request: Request) -> Reply | None:
        if POISON_TEXT in request.prompt and (actors := engine_actors(raylet)):
            kills.extend(pid for pid in actors if pid not in kills and kill(pid))
        return None

    served.rater.fault = fatal
    config = served.config("shard_queries=4", "limits.failed_queries=0.5", "limits.failed_cells=0.5")
    result = run(config)
    assert len(kills) == 3, "once among the others, twice alone"
    statuses = Counter((r["query_id"], r["status"]) for r in served.coverage())
    assert statuses == {
        (q, "error" if q == "q2" else "ok"): len(questions) * len(DOCUMENTS) for q, (_, questions) in REQUESTS.items()
    }
    poison = [f for f in served.failures() if f["reason"] == POISON]
    assert [(f["query_id"], f["stage"], f["attempt"]) for f in poison] == [("q2", "judge", 2)]
    assert {f["query_id"] for f in served.failures()} == {"q2"}
    assert next(s for s in result.stages if s.stage == "judge").failed_queries == 1

    served.rater.fault = lambda request: None
    served.rater.asked.clear()
    run(config, retry_failed=True)
    assert served.rater.queries.keys() == {"q2"}
    assert not served.failures()


def test_an_engine_that_is_killed_once_costs_nobody_anything_but_time(served: Served, tmp_path: Path) -> None:
    run(served.config(f"output={tmp_path}/undisturbed"))
    served.rater.asked.clear()
    raylet = local_raylet()
    kills: list[int] = []

    first = threading.Lock()  # requests come from many threads

    def once(request: Request) -> Reply | None:
        if served.rater.asked.total() > 20 and first.acquire(blocking=False):
            kills.extend(pid for pid in engine_actors(raylet) if kill(pid))
        return None

    served.rater.fault = once
    result = run(served.config())
    assert len(kills) == 1
    assert not served.failures()
    assert run_bytes(tmp_path / "run") == run_bytes(tmp_path / "undisturbed")
    assert sum(s.failed_queries for s in result.stages) == 0


def test_a_query_that_kills_its_worker_is_set_aside_and_others_are_rated(served: Served) -> None:
    raylet = local_raylet()
    kills: list[int] = []

    def fatal(request: Request) -> Reply | None:
        """On one prompt: the others of a call go on when its worker is dead, and the next one may be there by then."""
        if all(text in request.prompt for text in (POISON_TEXT, DOCUMENTS["a"], REQUESTS["q2"][1][0])):
            kills.extend(pid for pid in workers(raylet) if kill(pid))
        return None

    served.rater.fault = fatal
    config = served.config("shard_queries=4", "ray.workers=1", "limits.failed_queries=0.5", "limits.failed_cells=0.5")
    run(config)
    assert len(kills) == 4, "twice among the others, twice by itself"
    statuses = Counter((r["query_id"], r["status"]) for r in served.coverage())
    assert statuses == {
        (q, "error" if q == "q2" else "ok"): len(questions) * len(DOCUMENTS) for q, (_, questions) in REQUESTS.items()
    }
    poison = [f for f in served.failures() if f["reason"] == POISON]
    assert [(f["query_id"], f["stage"]) for f in poison] == [("q2", "judge")]
    assert "killed its worker 2 times" in poison[0]["detail"]
    assert {f["query_id"] for f in served.failures()} == {"q2"}
    assert not list((served.folder / "run" / "attempts").iterdir())

    served.rater.fault = lambda request: None
    served.rater.asked.clear()
    run(config, retry_failed=True)
    assert served.rater.queries.keys() == {"q2"}
    assert not served.failures()


def test_when_one_replica_dies_nothing_that_another_answered_is_asked_again(served: Served) -> None:
    raylet = local_raylet()
    first = threading.Lock()
    kills: list[int] = []

    def once(request: Request) -> Reply | None:
        if served.rater.asked.total() > 20 and first.acquire(blocking=False):
            kills.extend(pid for pid in engine_actors(raylet)[:1] if kill(pid))
        return None

    served.rater.fault = once
    llm = served.config().engines["llm"].model_copy(update={"replicas": 2})
    config = served.config(f"engines.llm={llm.model_dump_json()}", "shard_queries=4", "ray.workers=1")
    run(config)
    assert len(kills) == 1
    repeated = [prompt for prompt, times in served.rater.asked.items() if times > 1]
    replicas = {_replica(prompt) for prompt in repeated}
    assert len(replicas) <= 1, "all others were answered by the replica that lives"
    assert {_replica(prompt) for prompt in served.rater.asked} == {0, 1}
    assert {r["status"] for r in served.coverage()} == {"ok"}


def _replica(prompt: str) -> int:
    """Which of two replicas a prompt goes to."""
    key = affinity([{"role": "user", "content": prompt}])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 2


def test_an_engine_that_keeps_dying_ends_the_run_resumably(served: Served) -> None:
    raylet = local_raylet()

    def always(request: Request) -> Reply | None:
        for pid in engine_actors(raylet):
            kill(pid)
        return None

    served.rater.fault = always
    with pytest.raises(EngineError, match=r"engine 'llm' died more often than limits\.engine_restarts"):
        run(served.config("limits.engine_restarts=1"))
    served.rater.fault = lambda request: None
    run(served.config("limits.engine_restarts=1"))
    assert {r["status"] for r in served.coverage()} == {"ok"}


def test_a_server_that_is_gone_ends_the_run_resumably(served: Served) -> None:
    gone = "http://127.0.0.1:9/v1"  # the port for discarding: nobody listens
    with pytest.raises(EngineError, match="no connection"):
        run(served.config(f"engines.llm.base_url={gone}"))
    run(served.config())
    assert {r["status"] for r in served.coverage()} == {"ok"}


def test_a_hang_is_noticed_and_says_what_each_engine_was_doing(served: Served) -> None:
    served.rater.fault = lambda request: Reply(wait_s=60) if served.rater.asked.total() > 10 else None
    silent = r"nothing has moved for \d+ s \(limits\.stall_s\): "
    doing = r"llm: .*\(generate\) for \d+ s; shard [01]+ in judge.*; the run can be resumed"
    with pytest.raises(EngineError, match=silent + doing):
        run(served.config("limits.stall_s=2"))


# Damaged files


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


def tear(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-30])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def exchange(file: Path) -> None:
    """Puts another shard's part in its place."""
    other = next(f for f in sorted(file.parent.iterdir()) if f != file)
    file.write_bytes(other.read_bytes())


def foreign(file: Path) -> None:
    """Puts another shard's part in its place, under a name that fits its bytes."""
    other = next(f for f in sorted(file.parent.iterdir()) if f != file)
    file.unlink()
    name, _, _ = file.name.rpartition("-")
    shutil.copy(other, file.with_name(f"{name}-{other.name.rpartition('-')[2]}"))


def parts(folder: Path, stage: str) -> list[Path]:
    return sorted(p for p in (folder / "run" / "parts").rglob("*.parquet") if p.parent.name.startswith(stage))


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


# The store


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"needs to mount a small file system: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_ends_the_run_with_a_message_and_it_goes_on_when_there_is_room(
    small_disk: Path, undisturbed: Path
) -> None:
    config = again(small_disk, undisturbed)
    filler = small_disk / "filler"
    free = os.statvfs(small_disk)
    filler.write_bytes(b"x" * (free.f_bavail * free.f_frsize - 60_000))
    with pytest.raises(OutputError, match=r"cannot write to .*: No space left on device"):
        run(config)
    filler.unlink()
    run(config)
    assert run_bytes(small_disk / "run") == run_bytes(undisturbed / "run")


HANG_UP: Final = 0
FORGET: Final = 1


class FaultyStore(BaseHTTPRequestHandler):
    """Passes requests on to an S3 server, but for those that `fault` answers with a status, hangs up on or forgets."""

    protocol_version = "HTTP/1.1"
    upstream: str
    fault: Callable[[str, int], int | None]
    counted: Counter[str]

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.counted["requests"] += 1
        status = type(self).fault(self.command, self.counted["requests"])
        if status is not None:
            self.counted[str(status)] += 1
            self._fail(status)
            return
        import http.client

        connection = http.client.HTTPConnection(self.upstream.removeprefix("http://"), timeout=30)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        connection.close()

    def _fail(self, status: int) -> None:
        if status in (HANG_UP, FORGET):
            time.sleep(1.0 if status == FORGET else 0.0)
            self.close_connection = True
            return
        code = {500: "InternalError", 503: "SlowDown"}[status]
        content = b"" if self.command == "HEAD" else f"<Error><Code>{code}</Code></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def faulty(server: S3Server, fault: Callable[[str, int], int | None]) -> Iterator[tuple[str, Counter[str]]]:
    """(endpoint, counts) of a proxy before an S3 server; `fault(method, number)` gives a status or None."""
    counted: Counter[str] = Counter()
    handler = type(
        "Handler",
        (FaultyStore,),
        {"upstream": server.endpoint, "fault": staticmethod(fault), "counted": counted},
    )

    class Listener(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a client that has hung up

    with Listener(("127.0.0.1", 0), handler) as listener:
        threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{listener.server_port}", counted
        listener.shutdown()


@pytest.mark.s3
@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_an_object_store_that_fails_now_and_then_is_survived(
    s3_server: S3Server, undisturbed: Path, tmp_path: Path
) -> None:
    def fault(method: str, number: int) -> int | None:
        return {5: 500, 10: 503, 15: HANG_UP}.get(number % 20)

    bucket = s3_server.create_bucket()
    with faulty(s3_server, fault) as (endpoint, counted):
        output = [f"output=s3://{bucket}/run", f"storage.endpoint_override={endpoint}"]
        run(judged_config(undisturbed, *output))
        assert min(counted[status] for status in ("500", "503", str(HANG_UP))) >= 3
    names = ["run.trec", "first_stage.trec"]
    client = s3_server.client()
    for name in names:
        content = client.get_object(Bucket=bucket, Key=f"run/{name}")["Body"].read()
        assert content == (undisturbed / "run" / name).read_bytes()


@pytest.mark.s3
@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_an_object_store_that_is_gone_ends_the_run_resumably(
    s3_server: S3Server, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "DEAD_S", 1.0)  # this process, which could not say that it ended, is still alive
    down = threading.Event()

    def fault(method: str, number: int) -> int | None:
        if method == "PUT" and number > 25:
            down.set()
        return 503 if down.is_set() else None

    bucket = s3_server.create_bucket()
    with faulty(s3_server, fault) as (endpoint, _):
        output = f"output=s3://{bucket}/run"
        with pytest.raises(StorageError, match=f"object store {endpoint}, bucket '{bucket}', .*refused with"):
            run(judged_config(undisturbed, output, f"storage.endpoint_override={endpoint}"))
        assert down.is_set()
    endpoint = s3_server.endpoint
    run(judged_config(undisturbed, output, f"storage.endpoint_override={endpoint}"))
    content = s3_server.client().get_object(Bucket=bucket, Key="run/run.trec")["Body"].read()
    assert content == (undisturbed / "run" / "run.trec").read_bytes()


@pytest.mark.s3
@pytest.mark.parametrize("s3_server", ["moto"], indirect=True)
def test_an_object_store_that_does_not_answer_in_time_is_asked_again(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lancer.storage._ANSWER_S", 0.3)
    uri = f"s3://{s3_server.create_bucket()}/x"
    with faulty(s3_server, lambda method, number: FORGET if number == 1 else None) as (endpoint, counted):
        storage = Storage(StorageConfig(endpoint_override=endpoint))
        storage.write(uri, b"content")
        assert storage.read(uri) == b"content"
        assert counted[str(FORGET)] == 1
    with faulty(s3_server, lambda method, number: FORGET) as (endpoint, counted):
        with pytest.raises(StorageError, match="PutObject: ReadTimeoutError; check that the endpoint"):
            Storage(StorageConfig(endpoint_override=endpoint)).write(uri, b"other")
        assert counted[str(FORGET)] == 4, "four attempts, no more"
    assert Storage(StorageConfig(endpoint_override=s3_server.endpoint)).read(uri) == b"content"


# Two at once, and interrupts

HOLDER: Final = """
import sys, time
from lancer.pipeline import lease
from lancer.storage import Storage
lease.BEAT_S = 0.2
with lease.leased(Storage(), sys.argv[1], print):
    print("held", flush=True)
    time.sleep(60)
"""


def test_two_runs_cannot_write_one_folder_and_a_dead_one_is_taken_over_from(copied: Path, undisturbed: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(copied / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(OutputError, match=rf"is being written by process {other.pid} on "):
            run(again(copied, undisturbed))
        other.kill()
    said: list[str] = []
    run(again(copied, undisturbed), say=said.append)
    assert said[0] == f"taking over from session 2, whose process {other.pid} is gone"


def test_a_run_that_lost_its_folder_stops(undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.2)
    storage, root = Storage(), str(tmp_path / "run")

    def take_over() -> None:
        while not read_session(storage, root, 1).get("queries_to_do"):
            time.sleep(0.02)
        storage.create(lease.session_uri(root, 2), b'{"status": "running"}')

    thief = threading.Thread(target=take_over)
    thief.start()
    with pytest.raises(OutputError, match=r"another session \(2\) has taken .* over; this one stops"):
        run(again(tmp_path, undisturbed, "engines.llm.latency_s=1.5", "ray.workers=1"))
    thief.join()
    assert tokens(storage, root) == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_stops_within_seconds_and_goes_on(
    undisturbed: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """SIGINT on a Ray of its own, SIGTERM on a cluster's."""
    overrides = [f"output={tmp_path}/run", f"engines={{llm: {ENGINE}}}", "engines.llm.latency_s=1", "ray.workers=1"]
    config = judged_config(undisturbed, *overrides)
    (tmp_path / "config.json").write_text(config.model_dump_json(exclude_none=False))
    command = [sys.executable, "-m", "lancer.cli", "run", str(tmp_path / "config.json")]
    environment = os.environ | {"RAY_worker_niceness": "0"}
    if number == signal.SIGTERM:
        environment["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        # Where the tests run in the background of a shell, SIGINT is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "run").glob("ranking.parquet/*")):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        start = time.monotonic()
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert time.monotonic() - start < 10
    assert "interrupted; what was finished is kept, the same command goes on from there" in errors
    assert "Traceback" not in errors
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "interrupted"
    finished = len(list((tmp_path / "run" / "ranking.parquet").iterdir()))
    assert 1 <= finished < len(REQUESTS)

    result = run(judged_config(undisturbed, *overrides[:2]))
    assert next(s for s in result.stages if s.stage == "retrieve").reused_queries >= finished
    assert run_bytes(tmp_path / "run") == run_bytes(undisturbed / "run")
