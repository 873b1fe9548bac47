"""An S3 object as a stream that can be read from any place, and goes on where a connection broke."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, Final

from lancer.errors import StorageError
from lancer.storage.s3_connection import S3Connection
from lancer.storage.uris import bucket_and_key

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_ATTEMPTS: Final = 4  # of one read of an open object; botocore itself retries requests, not broken bodies


class S3Reader(io.RawIOBase):
    """One object as a seekable raw stream; a broken body is taken up again where it stopped, of the same version."""

    def __init__(self, connection: S3Connection, uri: str) -> None:
        super().__init__()
        self._connection, self._uri = connection, uri
        self._position = 0
        self._body: Any = None
        bucket, key = bucket_and_key(uri)
        with connection.errors(uri, "GetObject"):
            answer = connection.client().get_object(Bucket=bucket, Key=key)
        self._body, self._size = answer["Body"], int(answer["ContentLength"])
        self._object, self._etag = {"Bucket": bucket, "Key": key}, answer["ETag"]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        target = start + offset
        if target < 0:
            raise ValueError(f"negative seek position {target}")
        if target != self._position:
            self._drop_body()
            self._position = target
        return target

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self._size - self._position)
        if wanted <= 0:
            return 0
        data = self._fetch(wanted)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        self._drop_body()
        super().close()

    def _fetch(self, wanted: int) -> bytes:
        from botocore.exceptions import BotoCoreError
        from urllib3.exceptions import HTTPError

        with self._connection.errors(self._uri, "GetObject"):
            for attempt in range(_ATTEMPTS):
                if self._body is None:
                    self._reopen()
                try:
                    data: bytes = self._body.read(wanted)
                except (BotoCoreError, HTTPError):
                    data = b""
                    if attempt == _ATTEMPTS - 1:
                        raise
                if data:
                    return data
                self._drop_body()
        raise StorageError(f"{self._uri}: the body ended at byte {self._position} of {self._size}; try again")

    def _reopen(self) -> None:
        answer = self._connection.client().get_object(**self._object, Range=f"bytes={self._position}-")
        self._body = answer["Body"]
        if answer["ETag"] != self._etag:  # compared here, because not every server honours If-Match
            raise StorageError(f"{self._uri}: another file took its place while it was being read")

    def _drop_body(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None
