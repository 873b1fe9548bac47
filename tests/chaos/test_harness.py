"""The short form of `make chaos`: a few kills of a real job on a Ray of its own, on disk and on S3."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.ray
@pytest.mark.cluster
@pytest.mark.java
@pytest.mark.s3
def test_a_job_that_is_killed_again_and_again_leaves_what_an_undisturbed_one_does() -> None:
    command = [sys.executable, "-m", "tests.chaos.harness", "--storage", "disk", "s3", "--kills", "2", "1"]
    command += ["--queries", "12", "--seed", "97", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    disk, s3 = json.loads(done.stdout)
    assert (len(disk["kills"]), len(s3["kills"])) == (2, 1)
    assert 3 * (disk["injected"] + s3["injected"]) >= 3
    for report in (disk, s3):
        assert report["rounds"] >= 1
        assert report["differences"] == []
