"""One writer per run folder: a lease with a heartbeat and a fencing token, which is also the session's record.

    sessions/00003.json    the third session's: who, since when, last heartbeat, and what it reports (progress, clocks)

The highest number is the lease; taking it means creating the next number, which only one can where the store has a
conditional put (local disk, AWS S3, moto; rclone has none, and a warning says so). A holder that finds a higher number
has lost the folder and stops; what it committed meanwhile are parts whose names say what they are: nothing is harmed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from lancer.errors import BudgetError, LancerError, OutputError
from lancer.storage import Storage, join

log = logging.getLogger(__name__)

BEAT_S: Final = 5.0
DEAD_S: Final = 30.0  # without a heartbeat
FOLDER: Final = "sessions"

Say = Callable[[str], None]


class Lease:
    """Held from `take` to `release`; `report` is what the heartbeat writes beside the holder."""

    def __init__(self, storage: Storage, root: str, token: int) -> None:
        self._storage, self._root, self.token = storage, root, token
        self.uri = session_uri(root, token)
        self._record: dict[str, Any] = _holder(token)
        self._report: Callable[[], dict[str, Any]] = dict
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self.lost = ""

    def start(self, report: Callable[[], dict[str, Any]] = dict) -> None:
        """Begins the heartbeat, or gives it another `report`, which is called from its thread."""
        self._report = report
        if not self._thread.is_alive():
            self._thread.start()

    def check(self) -> None:
        """OutputError when another session has taken the folder, by the last heartbeat: some seconds ago."""
        if self.lost:
            raise OutputError(self.lost)

    def look(self) -> None:
        """The same, by the folder now: before something is removed or replaced there."""
        self._look()
        self.check()

    def _look(self) -> None:
        later = [t for t in tokens(self._storage, self._root) if t > self.token]
        if later:
            self.lost = f"another session ({later[-1]}) has taken {self._root} over; this one stops"

    def release(self, status: str) -> None:
        """Ends the heartbeat and writes the session's last record."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self.lost:
            try:
                self._write(status)
            except LancerError as error:  # a full disk, a store that is down: what the session ended with counts more
                log.warning("the last record of session %d could not be written: %s", self.token, error)

    def _beat(self) -> None:
        while not self._end.wait(BEAT_S):
            try:
                self._write("running")
                self._look()
            except LancerError:
                continue  # the store may be back at the next beat; what matters, commits, reports its own errors
            if self.lost:
                return

    def _write(self, status: str) -> None:
        record = self._record | {"status": status, "heartbeat": _now(), **self._report()}
        self._storage.write(self.uri, json.dumps(record, indent=1).encode())


def session_uri(root: str, token: int) -> str:
    """Where a session's record lies."""
    return join(root, FOLDER, f"{token:05d}.json")


def tokens(storage: Storage, root: str) -> list[int]:
    """The sessions of a run folder, ascending."""
    names = [entry.uri.rsplit("/", 1)[-1].removesuffix(".json") for entry in storage.list(join(root, FOLDER))]
    return sorted(int(name) for name in names if name.isdecimal())


def read_session(storage: Storage, root: str, token: int) -> dict[str, Any]:
    """A session's record; {} when it cannot be read (it is being written by a store without atomic puts)."""
    try:
        record = json.loads(storage.read(session_uri(root, token)))
    except (ValueError, LancerError):
        return {}
    return record if isinstance(record, dict) else {}


@contextlib.contextmanager
def leased(storage: Storage, root: str, say: Say) -> Iterator[Lease]:
    """Takes the folder: at once when it is free or its holder is dead on this host, after `DEAD_S` without a heartbeat.

    OutputError: another session holds it.
    """
    lease = take(storage, root, say)
    lease.start()
    status = "failed"
    try:
        yield lease
        status = "finished"
    except (KeyboardInterrupt, BudgetError):
        status = "interrupted"
        raise
    finally:
        lease.release(status)


def take(storage: Storage, root: str, say: Say) -> Lease:
    """See `leased`."""
    told = False
    seen: tuple[str, float] | None = None  # the holder's heartbeat, and since when it has not moved by our own clock
    while True:
        last = max(tokens(storage, root), default=0)
        holder = read_session(storage, root, last) if last else {}
        if not last or holder.get("status") not in (None, "running") or dead_here(holder):
            if holder and dead_here(holder) and holder.get("status") == "running":
                say(f"taking over from session {last}, whose process {holder.get('pid')} is gone")
            lease = _create(storage, root, last + 1, say)
            if lease is not None:
                return lease
            continue
        beat = str(holder.get("heartbeat", ""))
        if seen is None or seen[0] != beat:
            if seen is not None:
                raise OutputError(
                    f"{root} is being written by process {holder.get('pid')} on {holder.get('host')}, "
                    f"since {holder.get('started')}; end it first, or choose another `output`"
                )
            seen = (beat, time.monotonic())
        if not told:
            who = f"process {holder.get('pid')} on {holder.get('host')}"
            say(f"{root} was last written by {who}; waiting up to {DEAD_S:.0f} s for a sign of life")
            told = True
        if time.monotonic() - seen[1] > DEAD_S:
            say(f"taking over from session {last}: no sign of life for {DEAD_S:.0f} s")
            lease = _create(storage, root, last + 1, say)
            if lease is not None:
                return lease
            seen = None
        time.sleep(1.0)


def _create(storage: Storage, root: str, token: int, say: Say) -> Lease | None:
    record = json.dumps(_holder(token) | {"status": "running", "heartbeat": _now()}, indent=1).encode()
    uri = session_uri(root, token)
    if not storage.create(uri, record):
        return None
    if not storage.creates_once(uri, record):
        say(f"warning: {root} is on a store without conditional puts: two runs on it at once are not kept apart")
    return Lease(storage, root, token)


def _holder(token: int) -> dict[str, Any]:
    return {
        "token": token,
        "host": socket.gethostname(),
        "place": _place(),
        "pid": os.getpid(),
        "born": _born(os.getpid()),
        "started": _now(),
    }


def dead_here(holder: dict[str, Any]) -> bool:
    """The holder ran where this process runs and its process is gone, or is another one under the same number."""
    if holder.get("host") != socket.gethostname() or not holder.get("place") or holder["place"] != _place():
        return False
    pid = holder.get("pid")
    return not isinstance(pid, int) or _born(pid) != holder.get("born")


def _place() -> str | None:
    """Where process numbers mean the same: this boot of this machine, and the container's namespace of processes.

    Host names do not tell: two containers, or two cloned machines, may have the same one. None where Linux is not.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as boot:
            return f"{boot.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _born(pid: int) -> str | None:
    """The start time of a process, in clock ticks since boot, with the boot's id; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat, open("/proc/sys/kernel/random/boot_id") as boot:
            fields = stat.read().rpartition(")")[2].split()
            return None if fields[0] == "Z" else f"{boot.read().strip()}:{fields[19]}"
    except OSError:
        return None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
