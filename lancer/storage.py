"""Local files and S3 objects behind one class, with atomic commits: every byte of a run passes through here.

A URI is a local path or `s3://bucket/key`. What a reader can see is whole: a local write goes to a temporary name in
the same folder, is synced and renamed; an S3 object appears when its upload completes. Credentials come from boto3's
own chain (environment, profile, instance role) and enter no config, message or log. The only module that imports boto3.
"""

from __future__ import annotations

import builtins
import contextlib
import email.utils
import errno
import hashlib
import io
import os
import tempfile
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

from lancer.closed import Closed
from lancer.errors import InputError, OutputError, SetupError, StorageError, UsageError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TEMPORARY_PREFIX: Final = ".lancer-tmp-"
_S3: Final = "s3://"
_MULTIPART_BYTES: Final = 100 * 1000 * 1000
_SPOOL_BYTES: Final = 16 * 1024 * 1024  # open_write to S3 keeps this much in memory, then uses a temporary file
_READ_BUFFER_BYTES: Final = 1024 * 1024
_READ_ATTEMPTS: Final = 4  # of one read of an open object; botocore itself retries requests, not broken bodies
_CONNECT_S: Final = 10.0
_ANSWER_S: Final = 60.0  # without a byte
_NAME_LIMIT: Final = 150  # file systems allow 255 bytes in a name; callers add suffixes
_MISSING: Final = frozenset({"NoSuchKey", "NoSuchBucket", "NotFound", "404"})
_DENIED: Final = frozenset(
    {"AccessDenied", "Forbidden", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
)
_DISK: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS})
_CREATE_CLIENT: Final = threading.Lock()  # creating boto3 clients is not thread-safe; using one is


class StorageConfig(Closed):
    """Where S3 URIs point. Without `endpoint_override` boto3 decides (AWS_ENDPOINT_URL, then AWS itself)."""

    endpoint_override: str | None = None
    region: str | None = None
    path_style: bool = True  # with a set endpoint: bucket in the path (MinIO, Ceph, rclone), not in the host name


@dataclass(frozen=True)
class Entry:
    """One stored file; `size` in bytes, `modified` in seconds since 1970 by the store's clock."""

    uri: str
    size: int
    modified: float = field(default=0.0, compare=False)


def is_remote(uri: str) -> bool:
    """Whether `uri` is an object-store URI; UsageError for a scheme that is not supported."""
    scheme, separator, _ = uri.partition("://")
    if separator and scheme != "s3":
        raise UsageError(f"{uri}: scheme {scheme!r} is not supported; allowed: a local path, s3://bucket/key")
    return bool(separator)


def join(base_uri: str, *parts: str) -> str:
    """`base_uri` and `parts` with one slash between each, for local paths and S3 alike."""
    pieces = [part.strip("/") for part in parts if part.strip("/")]
    if not base_uri:
        return "/".join(pieces)
    base = base_uri if base_uri == _S3 else base_uri.rstrip("/")
    return "/".join([base, *pieces]) if pieces else base or "/"


def safe_name(id: str) -> str:
    """`id` as one path component, a different one for each id.

    Everything but letters, digits and `_ . - ~` is percent-escaped, and so is a leading dot; a long one keeps its head
    and ends in `%%` and its SHA-256.
    """
    if not id:
        return "%"
    name = urllib.parse.quote(id, safe="", errors="surrogatepass")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _NAME_LIMIT:
        digest = hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()
        name = f"{name[: _NAME_LIMIT - 66]}%%{digest}"
    return name


def is_temporary(uri: str) -> bool:
    """Whether a file has the name of one that is not committed yet."""
    return uri.rsplit("/", 1)[-1].startswith(TEMPORARY_PREFIX)


class Storage:
    """Reads, writes and lists local files and S3 objects. Picklable; each process makes its own client on first use.

    Errors: InputError = no such file, object or bucket; OutputError = a local write failed; StorageError = the object
    store does not answer or refuses; SetupError = boto3 is not installed.
    """

    def __init__(self, config: StorageConfig | None = None) -> None:
        self.config = config or StorageConfig()
        self._client: Any = None
        self._client_pid = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config, "_client": None, "_client_pid": 0}

    def open(self, uri: str) -> BinaryIO:
        """A buffered, seekable reader that streams; bytes are fetched as they are read."""
        if is_remote(uri):
            return cast(BinaryIO, io.BufferedReader(_S3Reader(self, uri), _READ_BUFFER_BYTES))
        with _local_reading(uri):
            return open(uri, "rb")

    def read(self, uri: str) -> bytes:
        """All bytes of a file."""
        with self.open(uri) as file:
            return file.read()

    def write(self, uri: str, data: bytes) -> None:
        """Commits `data` in one step: a reader sees the old file or the new one."""
        if is_remote(uri) and len(data) < _MULTIPART_BYTES:
            bucket, key = _split(uri)
            with self._s3_errors(uri, "PutObject"):
                self._s3().put_object(Bucket=bucket, Key=key, Body=data)
            return
        with self.open_write(uri) as file:
            file.write(data)

    def create(self, uri: str, data: bytes) -> bool:
        """Commits `data` unless the file exists; False if it does. Of several concurrent callers one gets True.

        On S3 that last promise is the server's (If-None-Match; AWS and moto honour it, rclone ignores it: there two
        callers within one round trip may both get True).
        """
        if is_remote(uri):
            return not self.exists(uri) and self._put_if_absent(uri, data)
        with _local_writing(uri), _temporary_beside(uri) as temporary:
            temporary.write_bytes(data)
            _sync(temporary)
            try:
                os.link(temporary, uri)
            except FileExistsError:
                return False
            _sync(Path(uri).parent)
            return True

    def creates_once(self, uri: str, data: bytes) -> bool:
        """Whether the store itself refuses to `create` the file `uri` a second time; it is there, and holds `data`."""
        return not (is_remote(uri) and self._put_if_absent(uri, data))

    def exists(self, uri: str) -> bool:
        """Whether `uri` is a file (not a folder)."""
        if not is_remote(uri):
            return Path(uri).is_file()
        bucket, key = _split(uri)
        try:
            with self._s3_errors(uri, "HeadObject"):
                self._s3().head_object(Bucket=bucket, Key=key)
        except InputError:
            return False
        return True

    def list(self, prefix_uri: str, start: str = "", *, temporary: bool = False) -> builtins.list[Entry]:
        """All files in the folder `prefix_uri` and below, sorted by URI; [] if there is no such folder.

        `start`: only those whose path below the folder starts so; on S3 others cost nothing then. `temporary`: with
        what is being written, or was when a process was killed.
        """
        found = self._list_s3(prefix_uri, start) if is_remote(prefix_uri) else _list_local(prefix_uri, start)
        kept = (entry for entry in found if temporary or not is_temporary(entry.uri))
        return sorted(kept, key=lambda entry: entry.uri)

    def now(self, uri: str) -> float:
        """The time of the store of `uri`, in seconds since 1970: by the clock that `list` gives `modified` by."""
        if is_remote(uri):
            bucket, prefix = _split(uri.rstrip("/") + "/", key_optional=True)
            with self._s3_errors(uri, "ListObjectsV2"):
                answer = self._s3().list_objects_v2(Bucket=bucket, Prefix=prefix, MaxKeys=1)
            with contextlib.suppress(KeyError, ValueError):  # a server that does not say
                date = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
                return email.utils.parsedate_to_datetime(date).timestamp()
        return time.time()

    def delete(self, uri: str) -> None:
        """Removes a file; nothing happens if there is none."""
        if is_remote(uri):
            bucket, key = _split(uri)
            with self._s3_errors(uri, "DeleteObject"):
                self._s3().delete_object(Bucket=bucket, Key=key)
            return
        with _local_writing(uri):
            Path(uri).unlink(missing_ok=True)

    @contextlib.contextmanager
    def open_write(self, uri: str) -> Iterator[BinaryIO]:
        """A file to write, committed in one step at the end of the block; an error in the block leaves nothing.

        The block must leave the file open.
        """
        if not is_remote(uri):
            with _local_writing(uri, only=_DISK), _temporary_beside(uri) as temporary:
                with _local_writing(uri):
                    file = open(temporary, "xb")  # noqa: SIM115 - the errors of opening it and of writing it differ
                with file:
                    yield file
                with _local_writing(uri):
                    _sync(temporary)
                    os.replace(temporary, uri)
                    _sync(Path(uri).parent)
            return
        with _local_writing(tempfile.gettempdir(), only=_DISK), tempfile.SpooledTemporaryFile(_SPOOL_BYTES) as spool:
            yield cast(BinaryIO, spool)
            spool.seek(0)
            self._upload(uri, cast(BinaryIO, spool))

    def check_writable(self, uri: str) -> None:
        """OutputError with the reason if nothing can be written into the folder `uri`; leaves no trace."""
        if is_remote(uri):
            probe = join(uri, f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
            try:
                self.write(probe, b"")
                self.delete(probe)
            except (InputError, StorageError) as error:
                raise OutputError(f"cannot write to {uri}: {error}") from error
            return
        folder = Path(uri).absolute()
        while not os.path.lexists(folder):
            folder = folder.parent
        with _local_writing(uri), tempfile.TemporaryFile(dir=folder, prefix=TEMPORARY_PREFIX):
            pass

    def _s3(self) -> Any:
        """This process's S3 client."""
        with _CREATE_CLIENT:
            if self._client is None or self._client_pid != os.getpid():
                self._client, self._client_pid = _new_client(self.config), os.getpid()
            return self._client

    def _upload(self, uri: str, file: BinaryIO) -> None:
        bucket, key = _split(uri)
        with self._s3_errors(uri, "PutObject"):
            client = self._s3()
            from boto3.s3.transfer import TransferConfig

            transfer = TransferConfig(multipart_threshold=_MULTIPART_BYTES, max_concurrency=4)
            client.upload_fileobj(file, bucket, key, Config=transfer)

    def _put_if_absent(self, uri: str, data: bytes) -> bool:
        bucket, key = _split(uri)
        with self._s3_errors(uri, "PutObject"):
            client = self._s3()
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

    def _list_s3(self, prefix_uri: str, start: str) -> Iterator[Entry]:
        bucket, prefix = _split(prefix_uri.rstrip("/") + "/" + start, key_optional=True)
        with self._s3_errors(prefix_uri, "ListObjectsV2"):
            for page in self._s3().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
                for item in page.get("Contents", []):
                    if not item["Key"].endswith("/"):  # a folder marker some tools leave
                        yield Entry(f"{_S3}{bucket}/{item['Key']}", int(item["Size"]), item["LastModified"].timestamp())

    @contextlib.contextmanager
    def _s3_errors(self, uri: str, operation: str) -> Iterator[None]:
        """What boto3 raises becomes our error: endpoint, bucket, operation and remedy, never a server's free text."""
        _require_boto3()
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, key = _split(uri, key_optional=True)
        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", "unknown"))
            if code in _MISSING:
                what = f"no such bucket {bucket!r}" if code == "NoSuchBucket" or not key else "no such object"
                raise InputError(f"{what} (endpoint {self._endpoint()})", file=uri) from error
            remedy = "see the object store's log for this request"
            if code in _DENIED:
                remedy = (
                    "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the machine's "
                    f"role) and that they allow {operation} on this bucket"
                )
            elif code in ("PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraint"):
                remedy = "set storage.region (or AWS_DEFAULT_REGION) to the bucket's region"
            raise StorageError(f"{self._place(bucket, operation)}: refused with {code}; {remedy}") from error
        except (BotoCoreError, Boto3Error) as error:
            kind = type(error).__name__
            if "Credential" in kind or "Token" in kind or "Profile" in kind:
                remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role for this machine"
            else:
                remedy = (
                    "check that the endpoint is right and can be reached (storage.endpoint_override, AWS_ENDPOINT_URL)"
                )
            raise StorageError(f"{self._place(bucket, operation)}: {kind}; {remedy}") from error

    def _place(self, bucket: str, operation: str) -> str:
        return f"object store {self._endpoint()}, bucket {bucket!r}, {operation}"

    def _endpoint(self) -> str:
        """The endpoint in use, without user and password."""
        url = self.config.endpoint_override or (self._client.meta.endpoint_url if self._client else "(default)")
        parts = urllib.parse.urlsplit(str(url))
        return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class _S3Reader(io.RawIOBase):
    """One object as a seekable raw stream; a broken body is taken up again where it stopped, of the same version."""

    def __init__(self, storage: Storage, uri: str) -> None:
        super().__init__()
        self._storage, self._uri = storage, uri
        self._position = 0
        self._body: Any = None
        bucket, key = _split(uri)
        with storage._s3_errors(uri, "GetObject"):
            answer = storage._s3().get_object(Bucket=bucket, Key=key)
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

        with self._storage._s3_errors(self._uri, "GetObject"):
            for attempt in range(_READ_ATTEMPTS):
                if self._body is None:
                    self._reopen()
                try:
                    data: bytes = self._body.read(wanted)
                except (BotoCoreError, HTTPError):
                    data = b""
                    if attempt == _READ_ATTEMPTS - 1:
                        raise
                if data:
                    return data
                self._drop_body()
        raise StorageError(f"{self._uri}: the body ended at byte {self._position} of {self._size}; try again")

    def _reopen(self) -> None:
        answer = self._storage._s3().get_object(**self._object, Range=f"bytes={self._position}-")
        self._body = answer["Body"]
        if answer["ETag"] != self._etag:  # compared here, because not every server honours If-Match
            raise StorageError(f"{self._uri}: another file took its place while it was being read")

    def _drop_body(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None


def _split(uri: str, *, key_optional: bool = False) -> tuple[str, str]:
    """Bucket and key of an S3 URI."""
    bucket, _, key = uri.removeprefix(_S3).partition("/")
    if not bucket or not (key or key_optional):
        raise UsageError(f"{uri}: not an object-store URI; allowed: s3://bucket/key")
    return bucket, key


def _require_boto3() -> None:
    try:
        import boto3  # noqa: F401
    except ImportError as error:
        raise SetupError("s3:// URIs need boto3, which is not installed; run: pip install 'lancer[s3]'") from error


def _new_client(config: StorageConfig) -> Any:
    import boto3
    from botocore.config import Config

    # The two checksum settings: rclone and older Ceph refuse the checksums that botocore adds by default.
    endpoint = config.endpoint_override or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    settings = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_ANSWER_S,
        retries={"mode": "standard", "total_max_attempts": 4},
        max_pool_connections=16,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"addressing_style": "path" if endpoint and config.path_style else "auto"},
    )
    session = boto3.session.Session(region_name=config.region)
    try:
        return session.client("s3", endpoint_url=config.endpoint_override, config=settings)
    except ValueError as error:  # botocore's word for a malformed endpoint
        raise UsageError(f"storage.endpoint_override is not a URL like http://host:port: {endpoint!r}") from error


def _list_local(folder: str, start: str) -> Iterator[Entry]:
    """Folders that are links are not followed. Of a folder of thousands only the files asked for are looked at."""
    below, _, name_start = start.rpartition("/")
    try:
        with os.scandir(join(folder, below) if below else folder) as found:
            named = [item for item in found if item.name.startswith(name_start)]
    except OSError:  # there is none
        return
    for item in named:
        uri = join(folder, below, item.name) if below else join(folder, item.name)
        if item.is_dir(follow_symlinks=False):
            yield from _list_local(uri, "")
        elif not item.is_dir():
            with contextlib.suppress(FileNotFoundError):  # removed since, or a link to nothing
                status = item.stat()
                yield Entry(uri, status.st_size, status.st_mtime)


@contextlib.contextmanager
def _local_reading(uri: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise InputError("no such file", file=uri) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=uri) from error


@contextlib.contextmanager
def _local_writing(uri: str, *, only: frozenset[int] | None = None) -> Iterator[None]:
    """Turns an OSError into OutputError; `only` leaves other error numbers alone (they may be the caller's own)."""
    try:
        yield
    except OSError as error:
        if only is not None and error.errno not in only:
            raise
        raise OutputError(f"cannot write to {uri}: {error.strerror or error}") from error


@contextlib.contextmanager
def _temporary_beside(uri: str) -> Iterator[Path]:
    """An unused temporary path in the folder of `uri`, which is made if needed; gone at the end."""
    with _local_writing(uri):
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
