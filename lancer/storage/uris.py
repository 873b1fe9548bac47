"""Names of stored files: local paths and `s3://bucket/key`."""

from __future__ import annotations

import hashlib
import urllib.parse
from dataclasses import dataclass, field
from typing import Final

from lancer.errors import UsageError

S3: Final = "s3://"
TEMPORARY_PREFIX: Final = ".lancer-tmp-"
_NAME_LIMIT: Final = 150  # file systems allow 255 bytes in a name; callers add suffixes


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


def bucket_and_key(uri: str, *, key_optional: bool = False) -> tuple[str, str]:
    """Of an S3 URI; UsageError if it has none."""
    bucket, _, key = uri.removeprefix(S3).partition("/")
    if not bucket or not (key or key_optional):
        raise UsageError(f"{uri}: not an object-store URI; allowed: s3://bucket/key")
    return bucket, key


def join(base_uri: str, *parts: str) -> str:
    """`base_uri` and `parts` with one slash between each, for local paths and S3 alike."""
    pieces = [part.strip("/") for part in parts if part.strip("/")]
    if not base_uri:
        return "/".join(pieces)
    base = base_uri if base_uri == S3 else base_uri.rstrip("/")
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
