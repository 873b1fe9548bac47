"""Reads a dataset in a thread, so that the one that waits for rows can see to other things, and be interrupted."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import ray

from lancer.pipeline.distributed.ray_session import own_error

CHECK_S: Final = 1.0  # between two rounds of checks
JOIN_S: Final = 5.0


class Reader:
    """The rows of one dataset."""

    def __init__(self) -> None:
        self._found: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def rows(self, dataset: ray.data.Dataset, checks: Sequence[Callable[[], None]]) -> Iterator[dict[str, Any]]:
        """The dataset's rows; the checks are called every second, however fast rows come."""
        self._thread = threading.Thread(target=self._read, args=(dataset,), name="dataset", daemon=True)
        self._thread.start()
        due = time.monotonic() + CHECK_S
        while True:
            if time.monotonic() >= due:
                for check in checks:
                    check()
                due = time.monotonic() + CHECK_S
            try:
                item = self._found.get(timeout=max(0.0, due - time.monotonic()))
            except queue.Empty:
                continue
            if item is None:
                return
            if isinstance(item, BaseException):
                raise own_error(item) from item
            yield item

    def join(self) -> None:
        """Waits for the thread, a few seconds at most."""
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _read(self, dataset: ray.data.Dataset) -> None:
        try:
            for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                for row in batch.to_pylist():  # type: ignore[union-attr]
                    self._found.put(row)
            self._found.put(None)
        except BaseException as error:  # noqa: BLE001 - it is raised again by the thread that waits for it
            self._found.put(error)
