from __future__ import annotations

import io
import time
from types import SimpleNamespace

import pytest

from lancer.pipeline import progress
from lancer.pipeline.progress import Progress


class Clock:
    """The module's time, to be set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: self.now))


def test_rate_and_eta_are_of_the_run_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    bar = Progress(16, lambda: "llm 3 calls", io.StringIO())
    assert bar.line() == "0/16 queries, 0.0/min, ETA --, llm 3 calls"
    clock.now += 120
    bar.advance(4)
    assert bar.line() == "4/16 queries, 2.0/min, ETA 6:00, llm 3 calls"
    clock.now += 60 * 60
    bar.advance(1)
    assert bar.line() == "5/16 queries, 0.1/min, ETA 2:16:24, llm 3 calls"
    bar.advance(11)
    assert "16/16 queries" in bar.line()
    assert "ETA 0:00" in bar.line()


def test_engines_that_say_nothing_leave_no_trace() -> None:
    assert Progress(1, str, io.StringIO()).line() == "0/1 queries, 0.0/min, ETA --"


def test_a_file_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.01)
    stream = io.StringIO()
    with Progress(2, lambda: "[/b] 1 calls", stream) as bar:
        bar.advance(1)
        deadline = time.monotonic() + 10
        while "1/2 queries" not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    last = stream.getvalue().splitlines()[-1]
    assert last.startswith("1/2 queries, ")
    assert last.endswith(", [/b] 1 calls")
    assert "\x1b" not in stream.getvalue()
