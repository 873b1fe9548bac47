"""The client of an object store, and what its errors mean for a person.

Credentials come from boto3's own chain (environment, profile, instance role) and enter no config, message or log.
"""

from __future__ import annotations

import contextlib
import os
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any, Final

from lancer.closed import Closed
from lancer.errors import InputError, SetupError, StorageError, UsageError
from lancer.storage.uris import bucket_and_key

_CONNECT_S: Final = 10.0
_ANSWER_S: Final = 60.0  # without a byte
_MISSING: Final = frozenset({"NoSuchKey", "NoSuchBucket", "NotFound", "404"})
_DENIED: Final = frozenset(
    {"AccessDenied", "Forbidden", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}
)
_ELSEWHERE: Final = frozenset({"PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraint"})
_CREATE_CLIENT: Final = threading.Lock()  # creating boto3 clients is not thread-safe; using one is


class StorageConfig(Closed):
    """Where S3 URIs point. Without `endpoint_override` boto3 decides (AWS_ENDPOINT_URL, then AWS itself)."""

    endpoint_override: str | None = None
    region: str | None = None
    path_style: bool = True  # with a set endpoint: bucket in the path (MinIO, Ceph, rclone), not in the host name


class S3Connection:
    """Picklable; each process makes its own client on first use."""

    def __init__(self, config: StorageConfig) -> None:
        self.config = config
        self._client: Any = None
        self._client_pid = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"config": self.config, "_client": None, "_client_pid": 0}

    def client(self) -> Any:
        """This process's client of boto3."""
        with _CREATE_CLIENT:
            if self._client is None or self._client_pid != os.getpid():
                self._client, self._client_pid = new_client(self.config), os.getpid()
            return self._client

    @contextlib.contextmanager
    def errors(self, uri: str, operation: str) -> Iterator[None]:
        """What boto3 raises becomes our error: endpoint, bucket, operation and remedy, never a server's free text.

        InputError: no such object or bucket; StorageError: any other; SetupError: boto3 is not installed.
        """
        _require_boto3()
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import BotoCoreError, ClientError

        bucket, key = bucket_and_key(uri, key_optional=True)
        try:
            yield
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", "unknown"))
            if code in _MISSING:
                what = f"no such bucket {bucket!r}" if code == "NoSuchBucket" or not key else "no such object"
                raise InputError(f"{what} (endpoint {self._endpoint()})", file=uri) from error
            raise StorageError(
                f"{self._place(bucket, operation)}: refused with {code}; {_remedy(code, operation)}"
            ) from error
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


def new_client(config: StorageConfig) -> Any:
    """A client of boto3. UsageError: the endpoint is not a URL."""
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


def _remedy(code: str, operation: str) -> str:
    if code in _DENIED:
        return (
            "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the machine's role) "
            f"and that they allow {operation} on this bucket"
        )
    if code in _ELSEWHERE:
        return "set storage.region (or AWS_DEFAULT_REGION) to the bucket's region"
    return "see the object store's log for this request"


def _require_boto3() -> None:
    try:
        import boto3  # noqa: F401
    except ImportError as error:
        raise SetupError("s3:// URIs need boto3, which is not installed; run: pip install 'lancer[s3]'") from error
