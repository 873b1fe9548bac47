"""Files named by what is in them: `<name>-<digest>.parquet`. A damaged one is seen by its name when it is read."""

from __future__ import annotations

import hashlib


def with_digest(name: str, data: bytes) -> str:
    """The name under which a file is committed."""
    return f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.parquet"


def without_digest(uri: str) -> str:
    """What stands before the digest."""
    return uri.removesuffix(".parquet").rpartition("-")[0]


def is_whole(uri: str, data: bytes) -> bool:
    """Whether these bytes are what was committed under that name."""
    return uri == with_digest(without_digest(uri), data)
