"""What an engine without timestamps of its own has done: busy seconds, calls and tokens, counted by many threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from lancer.engines.protocols import EngineClock, Generation


class Meter:
    """A context manager: it is busy while at least one block is open, so overlapping calls count once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open, self._since = 0, 0.0
        self._busy_s, self._calls, self._tokens = 0.0, 0, 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._open:
                self._since = time.monotonic()
            self._open += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:
                self._busy_s += time.monotonic() - self._since

    def count(self, generations: Iterable[Generation]) -> None:
        """Adds calls that ended, answered or not, and their tokens."""
        tokens = [g.prompt_tokens + g.output_tokens for g in generations]
        with self._lock:
            self._calls += len(tokens)
            self._tokens += sum(tokens)

    def clock(self, startup_s: float) -> EngineClock:
        """So far; a block that is open counts up to now."""
        with self._lock:
            busy_s = self._busy_s + (time.monotonic() - self._since if self._open else 0.0)
            return EngineClock(startup_s=startup_s, busy_s=busy_s, calls=self._calls, tokens=self._tokens)
