"""Objects in buckets of S3 or a server that speaks it."""

from __future__ import annotations

import contextlib
import email.utils
import io
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import BinaryIO, Final, cast

from lancer.errors import InputError, OutputError, StorageError
from lancer.storage.local_files import disk_errors
from lancer.storage.s3_connection import S3Connection
from lancer.storage.s3_reader import S3Reader
from lancer.storage.uris import S3, TEMPORARY_PREFIX, Entry, bucket_and_key, join

_MULTIPART_BYTES: Final = 100 * 1000 * 1000
_SPOOL_BYTES: Final = 16 * 1024 * 1024  # open_write keeps this much in memory, then uses a temporary file
_READ_BUFFER_BYTES: Final = 1024 * 1024


class S3Objects:
    """An object appears when its upload completes. The methods are those of `Storage`.

    Errors: as `S3Connection.errors`.
    """

    def __init__(self, connection: S3Connection) -> None:
        self._connection = connection

    def open(self, uri: str) -> BinaryIO:
        """See `Storage.open`."""
        return cast(BinaryIO, io.BufferedReader(S3Reader(self._connection, uri), _READ_BUFFER_BYTES))

    def write(self, uri: str, data: bytes) -> None:
        """See `Storage.write`."""
        if len(data) >= _MULTIPART_BYTES:
            with self.open_write(uri) as file:
                file.write(data)
            return
        bucket, key = bucket_and_key(uri)
        with self._connection.errors(uri, "PutObject"):
            self._connection.client().put_object(Bucket=bucket, Key=key, Body=data)

    def create(self, uri: str, data: bytes) -> bool:
        """See `Storage.create`."""
        return not self.exists(uri) and self._put_if_absent(uri, data)

    def creates_once(self, uri: str, data: bytes) -> bool:
        """See `Storage.creates_once`."""
        return not self._put_if_absent(uri, data)

    def exists(self, uri: str) -> bool:
        """See `Storage.exists`."""
        bucket, key = bucket_and_key(uri)
        try:
            with self._connection.errors(uri, "HeadObject"):
                self._connection.client().head_object(Bucket=bucket, Key=key)
        except InputError:
            return False
        return True

    def list(self, folder: str, start: str) -> Iterator[Entry]:
        """See `Storage.list`."""
        bucket, prefix = bucket_and_key(folder.rstrip("/") + "/" + start, key_optional=True)
        with self._connection.errors(folder, "ListObjectsV2"):
            pages = self._connection.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
            for page in pages:
                for item in page.get("Contents", []):
                    if not item["Key"].endswith("/"):  # a folder marker some tools leave
                        yield Entry(f"{S3}{bucket}/{item['Key']}", int(item["Size"]), item["LastModified"].timestamp())

    def now(self, uri: str) -> float:
        """See `Storage.now`."""
        bucket, prefix = bucket_and_key(uri.rstrip("/") + "/", key_optional=True)
        with self._connection.errors(uri, "ListObjectsV2"):
            answer = self._connection.client().list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
        with contextlib.suppress(KeyError, ValueError):  # a server that does not say
            date = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
            return email.utils.parsedate_to_datetime(date).timestamp()
        return time.time()

    def delete(self, uri: str) -> None:
        """See `Storage.delete`."""
        bucket, key = bucket_and_key(uri)
        with self._connection.errors(uri, "DeleteObject"):
            self._connection.client().delete_object(Bucket=bucket, Key=key)

    @contextlib.contextmanager
    def open_write(self, uri: str) -> Iterator[BinaryIO]:
        """See `Storage.open_write`."""
        with disk_errors(tempfile.gettempdir()), tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as spool:
            yield cast(BinaryIO, spool)
            spool.seek(0)
            bucket, key = bucket_and_key(uri)
            with self._connection.errors(uri, "PutObject"):
                client = self._connection.client()
                from boto3.s3.transfer import TransferConfig

                transfer = TransferConfig(multipart_threshold=_MULTIPART_BYTES, max_concurrency=4)
                client.upload_fileobj(spool, bucket, key, Config=transfer)

    def check_writable(self, uri: str) -> None:
        """See `Storage.check_writable`."""
        bucket_and_key(uri, key_optional=True)
        probe = join(uri, f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
        try:
            self.write(probe, b"")
            self.delete(probe)
        except (InputError, StorageError) as error:
            kind = OutputError if isinstance(error, InputError) else StorageError
            raise kind(f"cannot write to {uri}: {error}") from error

    def _put_if_absent(self, uri: str, data: bytes) -> bool:
        bucket, key = bucket_and_key(uri)
        with self._connection.errors(uri, "PutObject"):
            client = self._connection.client()
            for attempt in range(3):
                try:
                    client.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
                except client.exceptions.ClientError as error:
                    code = error.response["Error"]["Code"]
                    if code in ("PreconditionFailed", "412"):
                        return False
                    # AWS answers 409 while another conditional write of the key is under way, and asks to try again.
                    if code not in ("ConditionalRequestConflict", "409") or attempt == 2:
                        raise
                else:
                    break
        return True
