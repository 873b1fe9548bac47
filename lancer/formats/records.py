"""JSON files as objects with their places, and the checks of single values that all readers share."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from lancer.errors import InputError
from lancer.formats.lines import read_lines
from lancer.storage import Storage

NUL: Final = "\0"  # ends a string in the C code under ir_measures, which then scores 0 without a word

Record = dict[str, object]


class Place(NamedTuple):
    """Where a value stands, for the message when it is wrong."""

    file: str | Path
    line: int | None = None
    field: str | None = None

    def at(self, field: str) -> Place:
        """The same line, another field."""
        return Place(self.file, self.line, field)

    def error(self, message: str) -> InputError:
        """To be raised."""
        return InputError(message, file=self.file, line=self.line, field=self.field)

    def expected(self, found: object, what: str) -> InputError:
        """To be raised: the value, cut to 60 characters, and what should be there."""
        text = json.dumps(found, ensure_ascii=False, default=str)
        return self.error(f"found {text if len(text) <= 60 else text[:57] + '...'}, {what} is expected")


def read_records(path: str | Path, storage: Storage | None = None) -> Iterator[tuple[Place, Record]]:
    """JSON objects with the place each starts at: JSON Lines, one array of objects, or one object over many lines.

    JSON Lines are streamed; the two other shapes are held in memory. InputError for a syntax error, a key given twice
    in one object, NaN and infinity, a value that is no object.
    """
    lines = read_lines(path, storage)
    for number, line in lines:
        if line.strip() == "{" or line.lstrip().startswith("["):
            yield from _whole_file(_rejoined(number, line, lines), Place(path, number))
        else:
            yield _one_line(path, number, line)
        break
    for number, line in lines:
        yield _one_line(path, number, line)


def as_object(value: object, place: Place) -> Record:
    """The value as a JSON object, or InputError."""
    if not isinstance(value, dict):
        raise place.expected(value, "a JSON object")
    return value


def as_list(value: object, place: Place) -> list[object]:
    """The value as a JSON list, or InputError."""
    if not isinstance(value, list):
        raise place.expected(value, "a list")
    return value


def as_text(value: object, place: Place) -> str | None:
    """A string without blanks at its ends; None for null and for a blank one; InputError for another type."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise place.expected(value, "a text")
    _check_unicode(value, place)
    return value.strip() or None


def as_id(value: object, place: Place) -> str:
    """An id: a string without blanks (a run could not hold them), or a whole number, which is read as its digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise place.expected(value, "an id")
    if value.split() != [value]:
        raise place.error(f"the id {value!r} contains blanks")
    if NUL in value:
        raise place.error(f"the id {value!r} contains a NUL character")
    _check_unicode(value, place)
    return value


def as_number(value: object, place: Place) -> float:
    """A finite number, or InputError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise place.expected(value, "a finite number")


def first_present(record: Record, names: Iterable[str]) -> str | None:
    """The first of the field names whose value is neither missing, null nor a blank string."""
    for name in names:
        value = record.get(name)
        if value is not None and not (isinstance(value, str) and not value.strip()):
            return name
    return None


def _one_line(path: str | Path, number: int, line: str) -> tuple[Place, Record]:
    place = Place(path, number)
    return place, as_object(_parse(line, place), place)


def _whole_file(text: str, place: Place) -> Iterator[tuple[Place, Record]]:
    value = _parse(text, place)
    if not isinstance(value, list):
        yield place, as_object(value, place)
        return
    decoder, line, position = json.JSONDecoder(), place.line or 1, text.index("[")
    for item in value:
        while text[position] in "[, \t\r\n":
            line += text[position] == "\n"
            position += 1
        yield Place(place.file, line), as_object(item, Place(place.file, line))
        _, end = decoder.raw_decode(text, position)
        line += text.count("\n", position, end)
        position = end


def _rejoined(number: int, first: str, rest: Iterable[tuple[int, str]]) -> str:
    parts = [first]
    for later, line in rest:
        parts.append("\n" * (later - number) + line)  # blank lines were left out
        number = later
    return "".join(parts)


def _parse(text: str, place: Place) -> object:
    try:
        return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        line = (place.line or 1) + error.lineno - 1
        raise Place(place.file, line).error(f"not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise place.error(f"not JSON: {error}") from None


def _unique_keys(pairs: list[tuple[str, object]]) -> Record:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} appears twice in one object")
    return record


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _check_unicode(value: str, place: Place) -> None:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise place.error("holds half of a surrogate pair, which is no character") from None
