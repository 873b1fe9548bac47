"""Reads a selector from its spec, `name` or `name(parameter=value,...)`, as a config or the command line gives it."""

from __future__ import annotations

from lancer.errors import UsageError, nearest
from lancer.selection.base import Selector
from lancer.selection.parameters import allowed_values, field_name
from lancer.selection.table import SELECTORS


def parse_selector(spec: str) -> Selector:
    """The selector of a spec; `parse_selector(repr(s)) == s`. UsageError says what is wrong and what is allowed."""
    name, parenthesis, inside = spec.strip().partition("(")
    name = name.strip()
    if name not in SELECTORS:
        raise UsageError(f"unknown selector {name!r}{nearest(name, SELECTORS)}")
    kind = SELECTORS[name]
    if parenthesis and not inside.endswith(")"):
        problem = "the closing parenthesis is missing" if ")" not in inside else "there is text after the parenthesis"
        raise UsageError(f"selector {spec!r}: {problem}")
    allowed = allowed_values(kind)
    values: dict[str, object] = {}
    for item in inside[:-1].split(",") if inside[:-1].strip() else []:
        parameter, equals, text = (part.strip() for part in item.partition("="))
        if not equals:
            raise UsageError(f"selector {spec!r}: found {item.strip()!r}, parameter=value is expected; {_takes(name)}")
        if parameter not in allowed:
            close = nearest(parameter, allowed) if allowed else f"; {_takes(name)}"
            raise UsageError(f"selector {spec!r}: no parameter {parameter!r}{close}")
        if field_name(parameter) in values:
            raise UsageError(f"selector {spec!r}: {parameter} is given twice")
        values[field_name(parameter)] = allowed[parameter].read(text)
    return kind(**values)


def _takes(name: str) -> str:
    allowed = allowed_values(SELECTORS[name])
    return f"{name} takes {'; '.join(f'{key}: {values}' for key, values in allowed.items()) or 'no parameters'}"
