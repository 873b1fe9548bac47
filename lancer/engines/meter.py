"""What an engine has done, by its own timestamps: seconds of start-up, busy and idle, calls and tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from lancer.engines.protocols import EngineClock, Generation


class Meter:
    """Made when an engine begins to start; `ready` ends the start-up. As a context manager it is a piece of work.

    Each second is of one kind, taken down when that kind of time ends: starting until `ready`, then busy while at least
    one piece of work is open, so that overlapping ones count once, and idle between them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open, self._since = 0, time.monotonic()  # pieces of work, and since when it is starting, busy or idle
        self._startup_s, self._busy_s, self._idle_s = 0.0, 0.0, 0.0
        self._calls, self._tokens, self._cached, self._output = 0, 0, 0, 0

    def ready(self) -> None:
        """The engine takes calls from now on."""
        with self._lock:
            self._startup_s = self._lap()

    def __enter__(self) -> None:
        with self._lock:
            if not self._open:
                self._idle_s += self._lap()
            self._open += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:
                self._busy_s += self._lap()

    def count(self, generations: Iterable[Generation]) -> None:
        """Adds calls that ended, answered or not, and their tokens."""
        generations = list(generations)
        tokens = sum(g.prompt_tokens + g.output_tokens for g in generations)
        with self._lock:
            self._cached += sum(g.cached_tokens for g in generations)
            self._output += sum(g.output_tokens for g in generations)
        self.add(calls=len(generations), tokens=tokens)

    def add(self, *, calls: int = 0, tokens: int = 0) -> None:
        """Adds calls and tokens that are no generations'."""
        with self._lock:
            self._calls += calls
            self._tokens += tokens

    def clock(self) -> EngineClock:
        """So far; what it is doing now counts up to now."""
        with self._lock:
            now = time.monotonic() - self._since
            return EngineClock(
                startup_s=self._startup_s,
                busy_s=self._busy_s + (now if self._open else 0.0),
                idle_s=self._idle_s + (0.0 if self._open else now),
                calls=self._calls,
                tokens=self._tokens,
                cached_tokens=self._cached,
                output_tokens=self._output,
            )

    def _lap(self) -> float:
        """Seconds of the time that ends now."""
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        return seconds
