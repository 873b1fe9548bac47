"""The processes of a Ray that a test started: found by their raylet, so that nobody else's are ever touched."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path


def children(parent: int) -> Iterator[tuple[int, str]]:
    """(pid, title) of the processes that `parent` started."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # it has ended since
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            yield int(folder.name), title


def engine_actors(raylet: int) -> list[int]:
    """Processes that hold an engine, those that serve at this moment first."""
    titles = {pid: title for pid, title in children(raylet) if title.startswith("ray::EngineActor")}
    return sorted(titles, key=lambda pid: not titles[pid].startswith("ray::EngineActor.call"))


def workers(raylet: int) -> list[int]:
    """Processes that carry shards at this moment."""
    return [pid for pid, title in children(raylet) if title.startswith("ray::MapBatches")]


def local_raylet() -> int:
    """The raylet of the Ray that this process has started."""
    from ray._private import worker

    node = worker._global_node
    assert node is not None, "no Ray was started here"
    pid: int = node.all_processes["raylet"][0].process.pid
    return pid


def kill(pid: int) -> bool:
    """kill -9; whether there was such a process."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
