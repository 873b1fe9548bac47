"""Busy time is the time in which something ran, however many ran at once."""

from __future__ import annotations

import threading
import time

from lancer.engines.meter import Meter
from lancer.engines.protocols import EngineClock, Generation


def test_overlapping_calls_are_busy_once() -> None:
    meter = Meter()
    ready = threading.Barrier(4)

    def call() -> None:
        ready.wait()
        with meter:
            time.sleep(0.1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.1 <= meter.clock(0).busy_s <= time.monotonic() - began


def test_idle_time_is_not_busy_and_an_open_call_counts_so_far() -> None:
    meter = Meter()
    assert meter.clock(1.5) == EngineClock(startup_s=1.5, busy_s=0, calls=0, tokens=0)
    with meter:
        time.sleep(0.02)
        assert meter.clock(0).busy_s >= 0.02
    busy_s = meter.clock(0).busy_s
    time.sleep(0.02)
    assert meter.clock(0).busy_s == busy_s


def test_a_failed_call_ends() -> None:
    meter = Meter()
    try:
        with meter:
            raise ValueError("failed")
    except ValueError:
        busy_s = meter.clock(0).busy_s
    time.sleep(0.01)
    assert meter.clock(0).busy_s == busy_s


def test_calls_and_tokens_add_up() -> None:
    meter = Meter()
    meter.count([Generation(text="a", prompt_tokens=10, cached_tokens=8, output_tokens=2), Generation(text="")])
    meter.count([Generation(text="b", prompt_tokens=1)])
    assert (meter.clock(0).calls, meter.clock(0).tokens) == (3, 13)
