"""What identifies a value: settings, requests, rows."""

from __future__ import annotations

import hashlib
import json


def digest(value: object) -> str:
    """sha256 of a JSON value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
