"""The same run through `ray job submit` on a cluster of two nodes gives the same bytes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import lancer
from tests.pipeline.small import small_config

ROOT = Path(__file__).resolve().parents[2]
TABLES = ("ranking.parquet", "coverage.parquet")


@pytest.mark.ray
@pytest.mark.cluster
@pytest.mark.usefixtures("session_ray")
def test_a_submitted_job_gives_the_same_bytes_as_a_local_run(tmp_path: Path) -> None:
    lancer.run(small_config(tmp_path))
    there = tmp_path / "there"
    command = ["bash", str(ROOT / "cluster" / "local_two_nodes.sh"), str(tmp_path / "config.yaml"), f"output={there}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    here = tmp_path / "run"
    assert (there / "run.trec").read_bytes() == (here / "run.trec").read_bytes()
    for table in TABLES:
        ours = {p.name: p.read_bytes() for p in (here / table).iterdir()}
        assert {p.name: p.read_bytes() for p in (there / table).iterdir()} == ours
