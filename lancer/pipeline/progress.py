"""Progress of a run for a person: a bar on a terminal, a plain line now and then elsewhere; rate and ETA in both."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

REFRESH_S = 1.0
LINE_S = 10.0  # between plain lines


class Progress(AbstractContextManager["Progress"]):
    """Counts finished queries. `detail` is asked for a short text on the engines, from another thread."""

    def __init__(self, total: int, detail: Callable[[], str], stream: TextIO | None = None) -> None:
        self._total, self._detail, self._done = total, detail, 0
        self._stream = stream or sys.stderr
        self._start = time.monotonic()
        self._end = threading.Event()
        self._console = Console(file=self._stream)
        self._thread = threading.Thread(target=self._show, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def advance(self, queries: int) -> None:
        """So many more queries are finished."""
        self._done += queries

    def line(self) -> str:
        """`12/16 queries, 3.1/min, ETA 1:20` and the engines."""
        seconds = time.monotonic() - self._start
        rate = self._done / seconds if seconds > 0 else 0.0
        eta = duration((self._total - self._done) / rate) if rate else "--"
        parts = [f"{self._done}/{self._total} queries", f"{rate * 60:.1f}/min", f"ETA {eta}", self._detail()]
        return ", ".join(part for part in parts if part)

    def _show(self) -> None:
        if self._console.is_terminal:
            columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
            with Bar(*columns, console=self._console, transient=True) as bar:
                task = bar.add_task("", total=self._total)
                while not self._end.wait(REFRESH_S):
                    bar.update(task, completed=self._done, description=self.line().split(", ", 1)[1])
            return
        while not self._end.wait(LINE_S):
            self._stream.write(self.line() + "\n")
            self._stream.flush()


def duration(seconds: float) -> str:
    """`1:20`, or `3:00:07` from an hour on."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
