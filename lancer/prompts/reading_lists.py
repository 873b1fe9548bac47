"""A model's output → one rating per sub-question of a document (layout `per-document`).

A cell belongs to a sub-question by its number, or by its place in a list of exactly the right length: a missing or an
extra cell never shifts its neighbours. Rules, in order, after the thinking is taken off:
1. JSON: an object by its keys ("1", "q1", "question 1"), objects with a number beside the rating, or a plain list.
2. Nearly JSON (single quotes, cut off) and "1: 3, 2: 4": pairs of number and rating.
3. Nothing but ratings, separated by commas or line ends: a plain list.
4. Numbered lines and table rows: the rating in a line is read as in `lancer.prompts.reading`, or stands last after a
   colon, a dash, an arrow, a bar or the question.
A plain list of another length is unread as a whole; a keyed answer only in the cells that it lacks, and keys of no
sub-question are left out. A cell given twice must agree. Numbering from 0 leaves open what a number means: all is
unread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from lancer.prompts import unread
from lancer.prompts.answer import answer_of
from lancer.prompts.json_values import JsonObject, json_values
from lancer.prompts.numbers import plain
from lancer.prompts.reading import SCALE, of_json, of_text, without_rating
from lancer.prompts.unread import Reading, Unread

_Scale = tuple[int, int]
_Cell = tuple[int, int | Unread]  # number of the sub-question, outcome
_Row = list[int | Unread]  # an outcome per sub-question

_INDEXED = r"(?:sub[-_ ]?)?questions?|sub[-_ ]?q|q|item|no\.?"
_NAME = rf"(?:{_INDEXED}|rating)"
_KEY: Final = re.compile(rf"\W*(?:{_NAME})?[\W_]*(\d{{1,4}})\W*", re.IGNORECASE)
_INDEX: Final = re.compile(rf"(?:{_INDEXED}|id|number|index|n)(?:[-_ ]?(?:id|number|index|no))?", re.IGNORECASE)
_VALUE = r"[-+]?\d+(?:\.\d+)?(?:\s*/\s*\d+)?"
_PAIR: Final = re.compile(
    rf"(?<![\w.,/-]){_NAME}?[ _#]*(\d{{1,4}})[\"']?\s*[:=]\s*[\"']?({_VALUE})[\"']?\s*"
    rf"(?=[,;}}\n]|\Z|(?<=\s){_NAME}?[ _#]*\d{{1,4}}\s*[:=])",
    re.IGNORECASE,
)
_MARKER: Final = re.compile(
    rf"^[ \t>|#-]*(?:{_NAME}\s*#?\s*\(?(\d{{1,4}})\b[.):|\]=-]*"
    r"|[(\[]?(\d{1,4})(?:[.):\]](?=\s|\Z)|\s*(?:\||->|\u2192|=|:)|\s+-(?=\s)))",
    re.IGNORECASE | re.MULTILINE,
)
_TAIL: Final = re.compile(r"(?<![\d ])\s*(?:[:?=>|\u2192]|\s-+)\s*([^:?=>|\u2192\s][^:?=>|\u2192]*)\Z")
_NO_VALUE: Final = re.compile(r"null|none|n/?a|nan|-|\?|x", re.IGNORECASE)


def read_ratings(text: str, n: int, *, scale: _Scale = SCALE, cut: bool = False) -> list[Reading]:
    """The `n` readings that a model's whole output gives, in the order of the sub-questions.

    `cut` as in `read_rating`. With n = 1 an output that is no list is read as a single rating.
    """
    answer = answer_of(text)
    if answer is None:
        return [Reading(None, Unread.unfinished_thinking)] * n
    row = _of_json(answer, n, scale) or _of_text(plain(answer, scale).strip(), n, scale, cut)
    if row is None:
        row = [_outcome(of_text(answer, scale=scale, cut=cut)) if n == 1 else without_rating(answer)] * n
    return [unread.of(outcome) for outcome in row]


def _of_json(answer: str, n: int, scale: _Scale) -> _Row | None:
    values, around = json_values(answer)
    cells: list[_Cell] = []
    lists: list[_Row] = []
    for value in map(_unwrapped, values):
        if keyed := list(_keyed(value, scale)):
            cells += keyed
        elif isinstance(value, list) and not _MARKER.search(around) and (len(value) > 1 or not around):
            lists.append(_row([of_json(item, scale) for item in value], n))
    return _merged(cells, lists, n)


def _of_text(text: str, n: int, scale: _Scale, cut: bool) -> _Row | None:
    near_json = text.startswith("{")
    pairs = list(_PAIR.finditer(text))
    if pairs and (near_json or not re.search(r"\d", _PAIR.sub("", text))):
        unclosed = cut or (near_json and not text.endswith("}"))
        return _merged((_pair(pair, scale, unclosed and pair.end() == len(text)) for pair in pairs), [], n)
    if text.startswith("[") and "]" not in text:
        return [Unread.cut_off] * n
    if (listed := _listed(text, scale)) is not None:
        return _row(listed, n)
    numbered = list(_numbered(text, scale, cut))
    alone = n == 1 and all(number > 1 for number, _ in numbered)  # "3 - names two causes" is no third line
    return None if alone else _merged(numbered, [], n)


def _merged(cells: Iterable[_Cell], lists: list[_Row], n: int) -> _Row | None:
    """One row of what all keyed cells and all lists say; None when there are none."""
    cells = list(cells)
    if not cells and not lists:
        return None
    if any(number == 0 for number, _ in cells):
        return [Unread.ambiguous] * n
    row: _Row = []
    for i in range(n):
        outcome = unread.agreed({o for number, o in cells if number == i + 1} | {values[i] for values in lists})
        row.append(Unread.missing if outcome is None else outcome)
    return row


def _row(outcomes: _Row, n: int) -> _Row:
    return outcomes if len(outcomes) == n else [Unread.wrong_length] * n


def _unwrapped(value: object) -> object:
    """{"ratings": {…}} and [[…]] → what is inside."""
    while True:
        if isinstance(value, JsonObject) and not any(_number(key) for key, _ in value.members):
            inner = [member for _, member in value.members if isinstance(member, JsonObject | list)]
        elif isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
            inner = value
        else:
            return value
        if len(inner) != 1:
            return value
        value = inner[0]


def _keyed(value: object, scale: _Scale) -> Iterator[_Cell]:
    """Cells of an object by its keys, or of objects that carry their number."""
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, JsonObject):
            continue
        own = [number for key, member in item.members if _INDEX.fullmatch(key) and (number := _number(member))]
        others = tuple(pair for pair in item.members if not _INDEX.fullmatch(pair[0]))
        if len(own) == 1 and others:
            yield int(own[0]), of_json(JsonObject(others), scale)
        else:
            yield from (
                (int(number), of_json(member, scale)) for key, member in item.members if (number := _number(key))
            )


def _number(value: object) -> str | None:
    """The digits of 3, "3", "q3" or "question 3"."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    match = _KEY.fullmatch(str(value))
    return match[1] if match else None


def _pair(pair: re.Match[str], scale: _Scale, ends_open: bool) -> _Cell:
    return int(pair[1]), Unread.cut_off if ends_open else _outcome(of_text(pair[2], scale=scale))


def _listed(text: str, scale: _Scale) -> _Row | None:
    """The cells of a text that is nothing but ratings, in brackets or behind a label; None for anything else."""
    lead, colon, body = text.partition(":")
    if not colon or any(map(str.isdigit, lead)) or lead.count("\n"):
        body = text
    lines = [re.sub(r"\A[-\u2022]\s+", "", line.strip()) for line in body.strip(" \n[]()").split("\n") if line.strip()]
    parts = lines if len(lines) > 1 else re.split(r"\s*[,;]\s*", "".join(lines))
    parts = [part.strip("\"',") for part in parts]
    values = [bool(re.fullmatch(_VALUE, part)) for part in parts]
    if len(parts) < 2 or not any(values):
        return None
    if not all(value or _NO_VALUE.fullmatch(part) for value, part in zip(values, parts, strict=True)):
        return None
    return [_outcome(of_text(p, scale=scale)) if v else Unread.no_number for v, p in zip(values, parts, strict=True)]


def _numbered(text: str, scale: _Scale, cut: bool) -> Iterator[_Cell]:
    markers = list(_MARKER.finditer(text))
    for i, marker in enumerate(markers):
        last = i + 1 == len(markers)
        rest = text[marker.end() : None if last else markers[i + 1].start()].strip().strip("|,;").strip()
        yield int(marker[1] or marker[2]), _line(rest, scale, cut and last)


def _line(rest: str, scale: _Scale, cut: bool) -> int | Unread:
    """A line's rating as a phrase in it, or last after a sign; the two must agree."""
    outcomes = {_outcome(of_text(rest, scale=scale, cut=cut))}
    if tail := _TAIL.search(rest):
        outcomes.add(_outcome(of_text(tail[1], scale=scale, cut=cut)))
    stated = outcomes - {Unread.no_number, Unread.empty, Unread.refusal}
    outcome = unread.agreed(stated or outcomes)
    return Unread.no_number if outcome is None or outcome == Unread.empty else outcome


def _outcome(reading: Reading) -> int | Unread:
    return Unread(reading.reason) if reading.value is None else reading.value
