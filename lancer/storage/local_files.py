"""Files on a disk, or on a file system that several machines share."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from lancer.errors import InputError, OutputError
from lancer.storage.uris import TEMPORARY_PREFIX, Entry, join

_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})


class LocalFiles:
    """A file is written under a temporary name in its folder, synced and renamed. The methods are those of `Storage`.

    Errors: InputError = cannot be read; OutputError = cannot be written.
    """

    def open(self, uri: str) -> BinaryIO:
        """See `Storage.open`."""
        try:
            return open(uri, "rb")
        except FileNotFoundError as error:
            raise InputError("no such file", file=uri) from error
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", file=uri) from error

    def write(self, uri: str, data: bytes) -> None:
        """See `Storage.write`."""
        with self.open_write(uri) as file:
            file.write(data)

    def create(self, uri: str, data: bytes) -> bool:
        """See `Storage.create`."""
        with writing(uri), _temporary_beside(uri) as temporary:
            temporary.write_bytes(data)
            _sync(temporary)
            try:
                os.link(temporary, uri)
            except FileExistsError:
                return False
            _sync(Path(uri).parent)
            return True

    def creates_once(self, uri: str, data: bytes) -> bool:
        """See `Storage.creates_once`."""
        return True

    def exists(self, uri: str) -> bool:
        """See `Storage.exists`."""
        return Path(uri).is_file()

    def list(self, folder: str, start: str) -> Iterator[Entry]:
        """See `Storage.list`. Folders that are links are not followed; of one of thousands only the files asked for
        are looked at."""
        below, _, name_start = start.rpartition("/")
        try:
            with os.scandir(join(folder, below) if below else folder) as found:
                named = [item for item in found if item.name.startswith(name_start)]
        except OSError:  # there is none
            return
        for item in named:
            uri = join(folder, below, item.name) if below else join(folder, item.name)
            if item.is_dir(follow_symlinks=False):
                yield from self.list(uri, "")
            elif not item.is_dir():
                with contextlib.suppress(FileNotFoundError):  # removed since, or a link to nothing
                    status = item.stat()
                    yield Entry(uri, status.st_size, status.st_mtime)

    def now(self, uri: str) -> float:
        """See `Storage.now`."""
        return time.time()

    def delete(self, uri: str) -> None:
        """See `Storage.delete`."""
        with writing(uri):
            Path(uri).unlink(missing_ok=True)

    @contextlib.contextmanager
    def open_write(self, uri: str) -> Iterator[BinaryIO]:
        """See `Storage.open_write`."""
        with disk_errors(uri), _temporary_beside(uri) as temporary:
            with writing(uri):
                file = open(temporary, "xb")  # noqa: SIM115 - the errors of opening it and of writing it differ
            with file:
                yield file
            with writing(uri):
                _sync(temporary)
                os.replace(temporary, uri)
                _sync(Path(uri).parent)

    def check_writable(self, uri: str) -> None:
        """See `Storage.check_writable`."""
        folder = Path(uri).absolute()
        while not os.path.lexists(folder):
            folder = folder.parent
        with writing(uri), tempfile.TemporaryFile(dir=folder, prefix=TEMPORARY_PREFIX):
            pass


@contextlib.contextmanager
def writing(uri: str) -> Iterator[None]:
    """Turns an OSError into OutputError."""
    try:
        yield
    except OSError as error:
        raise _cannot_write(uri, error) from error


@contextlib.contextmanager
def disk_errors(uri: str) -> Iterator[None]:
    """Turns what only a disk says into OutputError: other OSErrors may be the own of the caller's block."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK:
            raise
        raise _cannot_write(uri, error) from error


def _cannot_write(uri: str, error: OSError) -> OutputError:
    return OutputError(f"cannot write to {uri}: {error.strerror or error}")


@contextlib.contextmanager
def _temporary_beside(uri: str) -> Iterator[Path]:
    """An unused temporary path in the folder of `uri`, which is made if needed; gone at the end."""
    with writing(uri):
        folder = Path(uri).parent
        folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Forces a file, or a folder's list of names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot sync a folder
            raise
    finally:
        os.close(descriptor)
