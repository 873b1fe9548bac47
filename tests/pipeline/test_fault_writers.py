"""Two runs in one folder, and interrupted ones, on a real Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

import pytest
import ray

from lancer.errors import OutputError
from lancer.pipeline import lease
from lancer.pipeline.distributed.runner import run
from lancer.pipeline.lease import read_session, tokens
from lancer.storage import Storage
from tests.pipeline.judged import ENGINE, again, judged_config, run_bytes
from tests.pipeline.small import REQUESTS

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("session_ray")]


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
