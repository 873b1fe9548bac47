"""The base of every config model: closed (unknown keys are errors) and frozen."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Closed(BaseModel):
    """A config model beside its owner."""

    model_config = ConfigDict(frozen=True, extra="forbid")
