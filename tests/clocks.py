"""The clock of an engine against the wall clock."""

from __future__ import annotations

import time
from typing import Protocol

from lancer.engines.protocols import EngineClock


class Clocked(Protocol):
    """An engine."""

    def clock(self) -> EngineClock: ...


def seconds(clock: EngineClock) -> float:
    """All that it has."""
    return clock.startup_s + clock.busy_s + clock.idle_s


def check_age(engine: Clocked, began: float, before: EngineClock | None = None) -> EngineClock:
    """Its clock, which must have within 2 % all seconds since `began`, less what it had `before`.

    The wall clock is read on both sides, so that it does not matter when this thread has to wait in between.
    """
    least = time.monotonic() - began
    clock = engine.clock()
    most = time.monotonic() - began
    found = seconds(clock) - (seconds(before) if before else 0.0)
    assert 0.98 * least <= found <= 1.02 * most, (least, found, most)
    return clock
