"""The fault table, engines and rows: what may go wrong on a real Ray, one test each, and what is there afterwards.

Files: test_fault_files; stores and disks: test_fault_stores; two writers, interrupts: test_fault_writers. Without Ray:
test_lease (conflict, dead and lost leases), test_isolate, test_journal, test_resume, test_store and test_limits; kills
at random moments: tests/chaos.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from lancer.errors import EngineError, LimitError
from lancer.formats.runs import read_run
from lancer.pipeline.distributed.engine_pool import affinity
from lancer.pipeline.distributed.runner import run
from lancer.pipeline.isolate import POISON
from tests.chaos.processes import engine_actors, kill, local_raylet, workers
from tests.http_servers import Reply, Request, completion
from tests.pipeline.damage import flip, parts
from tests.pipeline.judged import run_bytes
from tests.pipeline.rated import Served
from tests.pipeline.small import DOCUMENTS, REQUESTS

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("session_ray")]

POISON_TEXT: Final = REQUESTS["q2"][0]  # it stands in every judge prompt of q2
CELLS_OF_Q2: Final = len(REQUESTS["q2"][1]) * len(DOCUMENTS)


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
