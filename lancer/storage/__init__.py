"""Local files and S3 objects behind one class, with atomic commits: every byte of a run passes through here.

A URI is a local path or `s3://bucket/key`. What a reader can see is whole: a local write goes to a temporary name in
the same folder, is synced and renamed; an S3 object appears when its upload completes. The only package that imports
boto3.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

from lancer.storage.local_files import LocalFiles
from lancer.storage.s3_connection import S3Connection, StorageConfig
from lancer.storage.s3_objects import S3Objects
from lancer.storage.uris import TEMPORARY_PREFIX, Entry, is_remote, is_temporary, join, safe_name

__all__ = [
    "TEMPORARY_PREFIX",
    "Entry",
    "Storage",
    "StorageConfig",
    "is_remote",
    "is_temporary",
    "join",
    "safe_name",
]


class _Files(Protocol):
    """What both kinds of places do."""

    def open(self, uri: str, /) -> BinaryIO: ...
    def write(self, uri: str, data: bytes, /) -> None: ...
    def create(self, uri: str, data: bytes, /) -> bool: ...
    def creates_once(self, uri: str, data: bytes, /) -> bool: ...
    def exists(self, uri: str, /) -> bool: ...
    def list(self, folder: str, start: str, /) -> Iterator[Entry]: ...
    def now(self, uri: str, /) -> float: ...
    def delete(self, uri: str, /) -> None: ...
    def open_write(self, uri: str, /) -> AbstractContextManager[BinaryIO]: ...
    def check_writable(self, uri: str, /) -> None: ...


class Storage:
    """Reads, writes and lists local files and S3 objects. Picklable.

    Errors: InputError = no such file, object or bucket; OutputError = a local write failed; StorageError = the object
    store does not answer or refuses; SetupError = boto3 is not installed.
    """

    def __init__(self, config: StorageConfig | None = None) -> None:
        self.config = config or StorageConfig()
        self._local, self._s3 = LocalFiles(), S3Objects(S3Connection(self.config))

    def open(self, uri: str) -> BinaryIO:
        """A buffered, seekable reader that streams; bytes are fetched as they are read."""
        return self._files(uri).open(uri)

    def read(self, uri: str) -> bytes:
        """All bytes of a file."""
        with self.open(uri) as file:
            return file.read()

    def write(self, uri: str, data: bytes) -> None:
        """Commits `data` in one step: a reader sees the old file or the new one."""
        self._files(uri).write(uri, data)

    def create(self, uri: str, data: bytes) -> bool:
        """Commits `data` unless the file exists; False if it does. Of several concurrent callers one gets True.

        On S3 that last promise is the server's (If-None-Match; AWS and moto honour it, rclone ignores it: there two
        callers within one round trip may both get True).
        """
        return self._files(uri).create(uri, data)

    def creates_once(self, uri: str, data: bytes) -> bool:
        """Whether the store itself refuses to `create` the file `uri` a second time; it is there, and holds `data`."""
        return self._files(uri).creates_once(uri, data)

    def exists(self, uri: str) -> bool:
        """Whether `uri` is a file (not a folder)."""
        return self._files(uri).exists(uri)

    def list(self, prefix_uri: str, start: str = "", *, temporary: bool = False) -> builtins.list[Entry]:
        """All files in the folder `prefix_uri` and below, sorted by URI; [] if there is no such folder.

        `start`: only those whose path below the folder starts so; on S3 others cost nothing then. `temporary`: with
        what is being written, or was when a process was killed.
        """
        found = self._files(prefix_uri).list(prefix_uri, start)
        kept = (entry for entry in found if temporary or not is_temporary(entry.uri))
        return sorted(kept, key=lambda entry: entry.uri)

    def now(self, uri: str) -> float:
        """The time of the store of `uri`, in seconds since 1970: by the clock that `list` gives `modified` by."""
        return self._files(uri).now(uri)

    def delete(self, uri: str) -> None:
        """Removes a file; nothing happens if there is none."""
        self._files(uri).delete(uri)

    def open_write(self, uri: str) -> AbstractContextManager[BinaryIO]:
        """A file to write, committed in one step at the end of the block; an error in the block leaves nothing.

        The block must leave the file open.
        """
        return self._files(uri).open_write(uri)

    def check_writable(self, uri: str) -> None:
        """OutputError with the reason if nothing can be written into the folder `uri`; leaves no trace.

        StorageError: the object store does not answer, or refuses. UsageError: `uri` names no bucket.
        """
        self._files(uri).check_writable(uri)

    def _files(self, uri: str) -> _Files:
        return self._s3 if is_remote(uri) else self._local
