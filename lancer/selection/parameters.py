"""How a selector declares its parameters: default, allowed values, and how each is read from and written to a spec.

A parameter is a dataclass field made by `parameter` or `tau_parameter`. Options are the parameters that a canonical
spec leaves out at their default; the others are always written, so that a run tag shows them.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from lancer.errors import UsageError
from lancer.schema import Scale

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_DECIMAL: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WHOLE: Final = re.compile(r"[+-]?\d{1,18}", re.ASCII)


class Allowed(Protocol):
    """The values a parameter may have; `str()` says them to a person."""

    def read(self, text: str) -> object:
        """The value of a text; the text itself where it cannot be read, which `admits` then refuses."""
        ...

    def admits(self, value: object) -> bool: ...


@dataclass(frozen=True)
class Number:
    """A finite number from low to high."""

    low: float
    high: float

    def read(self, text: str) -> object:
        return float(text) if _DECIMAL.fullmatch(text) else text

    def admits(self, value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return math.isfinite(value) and self.low <= value <= self.high

    def __str__(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Threshold(Number):
    """A number that is also checked against the scale of the matrix, once that is known."""


@dataclass(frozen=True)
class Whole:
    """A whole number, at least low; None stands for "not set" and is not written."""

    low: int

    def read(self, text: str) -> object:
        return int(text) if _WHOLE.fullmatch(text) else text

    def admits(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= self.low

    def __str__(self) -> str:
        return f"a whole number, at least {self.low}"


@dataclass(frozen=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    def read(self, text: str) -> object:
        return text

    def admits(self, value: object) -> bool:
        return value in self.words

    def __str__(self) -> str:
        return "one of " + ", ".join(self.words)


@dataclass(frozen=True)
class Flag:
    """true or false."""

    def read(self, text: str) -> object:
        return {"true": True, "false": False}.get(text, text)

    def admits(self, value: object) -> bool:
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "true or false"


def parameter(default: object, allowed: Allowed, *, option: bool = False) -> Any:
    """A dataclass field of a selector. An `option` is left out of the canonical spec at its default."""
    return field(default=default, metadata={"allowed": allowed, "option": option})


def tau_parameter(default: float) -> Any:
    """A threshold in the scale of the matrix."""
    return parameter(default, Threshold(0, Scale.rating.maximum))


@cache
def allowed_values(kind: type[Any]) -> Mapping[str, Allowed]:
    """Parameter name in specs -> what it may be, of a selector class, in the order of the spec."""
    ordered = sorted(fields(kind), key=lambda f: bool(f.metadata["option"]))
    return {spec_name(f.name): f.metadata["allowed"] for f in ordered}


def field_name(name: str) -> str:
    """The field behind a parameter: `lambda` is a word of Python, so its field is `lambda_`."""
    return f"{name}_" if keyword.iskeyword(name) else name


def spec_name(name: str) -> str:
    """The parameter behind a field."""
    return name.removesuffix("_")


def check_values(name: str, selector: DataclassInstance) -> None:
    """UsageError where a parameter of the selector called `name` is outside its allowed values."""
    for each in fields(selector):
        value, allowed = getattr(selector, each.name), each.metadata["allowed"]
        if value is not each.default and not allowed.admits(value):
            found = repr(value) if isinstance(value, str) else write(value)
            raise UsageError(f"selector {name!r}: {spec_name(each.name)} must be {allowed}, found {found}")


def canonical(name: str, selector: DataclassInstance) -> str:
    """The spec that parses back to the selector called `name`; without blanks, since it is a run tag."""
    defaults = {spec_name(f.name): f.default for f in fields(selector) if f.metadata["option"]}
    shown = []
    for parameter_name in allowed_values(type(selector)):
        value = getattr(selector, field_name(parameter_name))
        if parameter_name not in defaults or value != defaults[parameter_name]:
            shown.append(f"{parameter_name}={write(value)}")
    return f"{name}({','.join(shown)})" if shown else name


def write(value: object) -> str:
    """A parameter value as it is written in a spec: 3 for 3.0, true for True."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
