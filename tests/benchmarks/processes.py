"""A function that is served by a process of its own, and processor seconds of processes: for benchmarks of engines."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any


class Served:
    """`start(argument)` runs in a new process and gives the function that answers calls. A context manager."""

    def __init__(self, start: Callable[[Any], Callable[..., Any]], argument: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._end, end = context.Pipe()
        self._process = context.Process(target=_serve, args=(end, start, argument))
        self._process.start()
        end.close()
        self.pid = self._process.pid or 0

    def __enter__(self) -> Served:
        self._end.recv()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._end.send(None)
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def call(self, *arguments: Any) -> tuple[Any, float, float]:
        """The answer, and the seconds and processor seconds that it took there."""
        self._end.send(arguments)
        answer: tuple[Any, float, float] = self._end.recv()
        return answer


def _serve(end: Connection, start: Callable[[Any], Callable[..., Any]], argument: Any) -> None:
    function = start(argument)
    end.send("ready")
    while (arguments := end.recv()) is not None:
        began, processor = time.perf_counter(), time.process_time()
        answer = function(*arguments)
        end.send((answer, time.perf_counter() - began, time.process_time() - processor))
    os._exit(0)  # an engine's threads are of no more use


def processor_seconds(root: int, *, without: int = 0) -> float:
    """Of a process and all that it started, so far; less those of process `without` and what that started."""
    parents, seconds = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            number = int(stat.parent.name)
            parents[number] = int(fields[1])
            seconds[number] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    total = 0.0
    for number in seconds:
        above = number
        while above not in (root, without, 0):
            above = parents.get(above, 0)
        total += seconds[number] if above == root else 0.0
    return total
