"""What of a request is searched for, and what documents are compared with: some of its fields, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

RequestField = Literal["title", "text", "background", "problem_statement"]


def query_of(request: Mapping[str, Any], fields: Sequence[RequestField]) -> str:
    """The fields that the request has, in the order of `fields`, with a blank between two."""
    return " ".join(request[name] for name in fields if request[name])
