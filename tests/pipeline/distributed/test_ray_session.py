"""A Ray that does not start is told in a line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import ray

from lancer.config import RayConfig
from lancer.errors import EngineError
from lancer.pipeline.distributed.ray_session import ray_session
from tests.pipeline.judged import judged_config


def test_a_local_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def init(*address: str, **settings: object) -> None:
        raise Exception("The current node timed out during startup.\nThis could happen because…")  # as Ray 2.60 does

    monkeypatch.setattr(ray, "init", init)
    said = r"Ray did not start on this machine .*: The current node timed out during startup; nothing is lost, the same"
    with pytest.raises(EngineError, match=said), ray_session(RayConfig(), []):
        pass


def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    judged_config(tmp_path)
    command = [sys.executable, "-m", "lancer.cli", "run", str(tmp_path / "config.yaml"), "ray.address=127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 6, done.stderr[-3000:]
    said = "lancer: no Ray can be reached at 127.0.0.1:9: [Errno 111] Connection refused; nothing is lost, the same"
    assert said in done.stderr
    assert "Traceback" not in done.stderr
