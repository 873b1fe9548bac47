"""The cache folder of this machine, and how a folder in it is built exactly once.

Embedded models, unpacked corpora and Lucene indexes live here. They can all be built again, so removing the folder is
always safe while nothing runs.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from lancer.errors import SetupError

log = logging.getLogger(__name__)


def cache_dir() -> Path:
    """`$LANCER_CACHE` if set, else `$XDG_CACHE_HOME/lancer`, else `~/.cache/lancer`. It need not exist yet.

    A relative `$XDG_CACHE_HOME` is ignored, as the XDG rules ask.
    """
    if own := os.environ.get("LANCER_CACHE"):
        return Path(own).expanduser().absolute()
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "lancer"


@contextmanager
def building(folder: Path, *, complete: Callable[[Path], bool] = Path.is_dir) -> Iterator[Path | None]:
    """Build `folder` at most once, also when several processes want it at the same moment.

    Yields None when `complete(folder)` already holds. Otherwise yields an empty folder beside it to fill, which takes
    the name of `folder` when the block ends; an exception inside the block leaves nothing behind. Others wait at a
    file lock meanwhile, and a killed builder's lock is free again.

        with building(cache_dir() / "indexes" / digest) as scratch:
            if scratch is not None:
                write_index(scratch)

    Raises:
        SetupError: the cache folder cannot be written.
    """
    # Before the lock: a complete cache may be on a read-only file system, as in an image.
    if complete(folder):
        yield None
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f"{folder.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            log.info("waiting for another process that builds %s", folder)
            lock.acquire()
    except OSError as error:
        raise SetupError(
            f"cannot write the cache folder {folder.parent}: {error}; set LANCER_CACHE to another"
        ) from None
    try:
        if complete(folder):
            yield None
            return
        scratch = folder.with_name(f"{folder.name}.building")
        shutil.rmtree(scratch, ignore_errors=True)  # of a builder that was killed
        scratch.mkdir()
        try:
            yield scratch
            if folder.exists():
                shutil.rmtree(folder)
            scratch.rename(folder)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
    finally:
        lock.release()
