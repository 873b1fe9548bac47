"""JSON objects and lists anywhere in a text, with repeated keys kept: what models wrap in prose and fences."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

_START: Final = re.compile(r"[{\[]")
_FAILURES: Final = 50  # tries; a text of many thousand brackets would otherwise take quadratic time


@dataclass(frozen=True)
class JsonObject:
    """The members of an object, in order; a plain dict would silently keep the last of two equal keys."""

    members: tuple[tuple[str, object], ...]


_DECODER: Final = json.JSONDecoder(object_pairs_hook=lambda pairs: JsonObject(tuple(pairs)))


def json_values(text: str) -> tuple[list[object], str]:
    """The outermost objects (`JsonObject`) and lists in `text`, and the text around them, stripped."""
    values: list[object] = []
    around: list[str] = []
    at = begin = failures = 0
    while failures < _FAILURES and (start := _START.search(text, at)):
        try:
            value, end = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            failures += 1
            at = start.end()
            continue
        values.append(value)
        around.append(text[begin : start.start()])
        at = begin = end
    return values, " ".join([*around, text[begin:]]).strip()
