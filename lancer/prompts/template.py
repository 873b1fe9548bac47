"""A prompt's text with named places; the built-in layouts are such texts, and a file can replace them.

Places are `{rubric}`, `{request}`, `{document}` and `{sub_question}`, filled by plain substitution in one pass: braces
in the text (JSON examples) and in what is filled in mean nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from lancer.errors import InputError, UsageError, nearest
from lancer.storage import Storage

PLACES: Final = ("rubric", "request", "document", "sub_question")
_REQUIRED: Final = ("document", "sub_question")
_PLACE: Final = re.compile(r"\{\s*([^\W\d]\w*)\s*\}")


@dataclass(frozen=True)
class Prompt:
    """The one user message of a prompt, and what an engine may share between prompts (offsets in characters).

    `content[:shared]` is the same for all sub-questions of one (request, document); `document_end` is where that part
    may be padded, with newlines, to a block of the prefix cache. Both are 0 when the sub-question comes first. `spans`
    says where the places' values begin and end, at their first use.
    """

    content: str
    document_end: int
    shared: int
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Template:
    """A text with places; make one with `parse_template` or `load_template`, which check it."""

    text: str

    @property
    def digest(self) -> str:
        """Identity of the text: SHA-256."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def fill(self, *, rubric: str, document: str, sub_question: str, request: str | None = None) -> Prompt:
        """The prompt, with the values as they are.

        Without a request its place goes: with the whole paragraph if that has no other place, else with its line if
        that has none, else alone.
        """
        values = {"rubric": rubric, "request": request or "", "document": document, "sub_question": sub_question}
        pieces, end = _pieces(self.text if request else _without_request(self.text))
        filled: list[str] = []
        length = document_end = 0
        shared: int | None = None
        spans: dict[str, tuple[int, int]] = {}
        for before, place in pieces:
            value = values[place]
            length += len(before)
            if place == "sub_question" and shared is None:
                shared = length
            filled += (before, value)
            if place not in spans:
                spans[place] = (length, length + len(value))
            length += len(value)
            if place == "document":
                document_end = length
        content = "".join(filled) + end
        if not shared or document_end > shared:
            document_end = shared = 0
        return Prompt(content, document_end, shared, spans)


def parse_template(text: str, *, file: str = "prompt") -> Template:
    """Checks a text; UsageError naming `file` and line for a place that does not exist or one that is missing."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    found: list[str] = []
    previous = -1
    for place in _PLACE.finditer(text):
        line = text.count("\n", 0, place.start()) + 1
        if place[1] not in PLACES:
            raise UsageError(f"{file}:{line}: unknown place {place.group()!r}{nearest(place[1], PLACES)}")
        if place.group() != f"{{{place[1]}}}":
            raise UsageError(f"{file}:{line}: write {{{place[1]}}} without blanks, not {place.group()!r}")
        if place.start() == previous:  # the end of one text and the beginning of the next could form a chat token
            raise UsageError(
                f"{file}:{line}: put a blank or a line end before {place.group()}: two places must not touch"
            )
        previous = place.end()
        found.append(place[1])
    for name in _REQUIRED:
        if name not in found:
            last = text.rstrip("\n").count("\n") + 1
            raise UsageError(
                f"{file}:{last}: the prompt ends without {{{name}}}; it needs {{document}} and {{sub_question}}"
            )
    return Template(text.strip())


def load_template(path: str, storage: Storage | None = None) -> Template:
    """Reads and checks a file (UTF-8, local or s3://); InputError when it cannot be read."""
    try:
        text = (storage or Storage()).read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"not UTF-8: byte 0x{error.object[error.start]:02x}", file=path, line=line) from None
    return parse_template(text, file=path)


@lru_cache(maxsize=64)  # few texts, and a prompt of each for every pair
def _pieces(text: str) -> tuple[tuple[tuple[str, str], ...], str]:
    """(the text before a place, the place) in order, and the text after the last one."""
    before_and_place = _PLACE.split(text)
    return tuple(zip(before_and_place[0::2], before_and_place[1::2], strict=False)), before_and_place[-1]


@lru_cache(maxsize=64)
def _without_request(text: str) -> str:
    paragraphs = []
    for paragraph in text.split("\n\n"):
        places = set(_PLACE.findall(paragraph))
        if "request" not in places:
            paragraphs.append(paragraph)
        elif len(places) > 1:
            lines = [line for line in paragraph.split("\n") if set(_PLACE.findall(line)) != {"request"}]
            paragraphs.append("\n".join(re.sub(r"\{request\} ?", "", line) for line in lines))
    return "\n\n".join(paragraphs)
