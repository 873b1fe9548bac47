"""The benchmark's own arithmetic."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.benchmarks.judging import auc_with_interval
from tests.benchmarks.judging_data import Judged
from tests.benchmarks.processes import processor_seconds


def test_the_interval_is_around_the_value() -> None:
    grades = tuple(tuple(int(g) for g in row) for row in np.random.default_rng(2).integers(0, 6, (50, 10)))
    one = Judged("1", "", ("",) * 50, ("",) * 10, grades)
    scores = np.array(grades) + np.random.default_rng(3).normal(0, 3, (50, 10))
    value, low, high = auc_with_interval([one], scores)
    assert 0.5 < low < value < high < 1
    assert high - low < 0.2


def test_processor_seconds_are_of_a_process_and_its_children() -> None:
    busy = "import time\nend = time.process_time() + {0}\nwhile time.process_time() < end: pass\ntime.sleep(60)"
    before = processor_seconds(os.getpid())
    children = [subprocess.Popen([sys.executable, "-c", busy.format(seconds)]) for seconds in (0.5, 1.0)]
    try:
        deadline = time.monotonic() + 60
        while processor_seconds(os.getpid()) - before < 1.5 and time.monotonic() < deadline:
            time.sleep(0.1)
        everything, less = processor_seconds(os.getpid()), processor_seconds(os.getpid(), without=children[1].pid)
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert everything - before >= 1.5
    assert everything - less == pytest.approx(1.0, abs=0.3)
