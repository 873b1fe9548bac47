"""Every second of an engine is start-up, busy or idle; busy is the time in which something ran, however many ran."""

from __future__ import annotations

import threading
import time

import pytest

from lancer.engines.meter import Meter
from lancer.engines.protocols import Generation
from tests.clocks import check_age


def ready() -> Meter:
    meter = Meter()
    meter.ready()
    return meter


def test_overlapping_calls_are_busy_once() -> None:
    meter = ready()
    barrier = threading.Barrier(4)

    def call() -> None:
        barrier.wait()
        with meter:
            time.sleep(0.1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.1 <= meter.clock().busy_s <= time.monotonic() - began


def test_idle_time_is_not_busy_and_what_goes_on_counts_so_far() -> None:
    meter = ready()
    time.sleep(0.02)
    assert meter.clock().idle_s >= 0.02
    assert meter.clock().busy_s == 0
    with meter:
        idle_s = meter.clock().idle_s
        time.sleep(0.02)
        assert meter.clock().busy_s >= 0.02
        assert meter.clock().idle_s == idle_s
    busy_s = meter.clock().busy_s
    time.sleep(0.02)
    assert meter.clock().busy_s == busy_s
    assert meter.clock().idle_s >= idle_s + 0.02


def test_the_three_kinds_of_time_add_up_to_the_age() -> None:
    began = time.monotonic()
    meter = Meter()
    time.sleep(0.1)
    meter.ready()
    for _ in range(3):
        time.sleep(0.05)
        with meter, meter:
            time.sleep(0.1)
    time.sleep(0.05)
    clock = check_age(meter, began)
    assert clock.startup_s >= 0.1
    assert clock.busy_s >= 0.3
    assert clock.idle_s >= 0.2


def test_a_failed_call_ends() -> None:
    meter = ready()
    with pytest.raises(ValueError, match="failed"), meter:
        raise ValueError("failed")
    busy_s = meter.clock().busy_s
    time.sleep(0.01)
    assert meter.clock().busy_s == busy_s


def test_calls_and_tokens_add_up() -> None:
    meter = ready()
    meter.count([Generation(text="a", prompt_tokens=10, cached_tokens=8, output_tokens=2), Generation(text="")])
    meter.count([Generation(text="b", prompt_tokens=1)])
    meter.add(calls=2)
    meter.add(tokens=7)
    assert (meter.clock().calls, meter.clock().tokens) == (5, 20)
    assert (meter.clock().cached_tokens, meter.clock().output_tokens) == (8, 2)
