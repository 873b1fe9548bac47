"""A model's output → an order of n numbered documents (RankGPT: what is malformed is repaired and counted).

Rules, in order:
1. What comes before the end of a thinking block is not the answer; an unfinished block is unread.
2. Identifiers are the numbers in brackets; where there are none, the numbers of an answer that is nothing but numbers
   and separators: "I cannot rank these 20 documents" names none. Where it was cut off, its last one may go on: dropped.
3. An identifier that was named before is dropped, so is one of no document.
4. Documents that are not named keep their order, behind those that are.
An answer that names no document at all is unread: the order stays.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lancer.prompts.answer import answer_of

VERSION: Final = 2

_IN_BRACKETS: Final = re.compile(r"\[\s*(\d{1,6})\s*\]")
_ALL_NUMBERS: Final = re.compile(r"\d{1,6}(?:[\s>,;]+\d{1,6})*[\s>,;.]*")


@dataclass(frozen=True)
class ReadOrder:
    """`order`: places from 0, each of the n once; the rest counts what was repaired. `read`: something was named."""

    order: list[int]
    read: bool
    missing: int = 0
    unknown: int = 0
    repeated: int = 0


def read_order(text: str, n: int, *, cut: bool = False) -> ReadOrder:
    """The order of documents 1 to n that a model's whole output gives. `cut`: as in `read_rating`."""
    answer = answer_of(text)
    numbers = [] if answer is None else _IN_BRACKETS.findall(answer) or _bare(answer, cut=cut)
    named = [int(number) - 1 for number in numbers]
    known = [place for place in named if 0 <= place < n]
    first = list(dict.fromkeys(known))
    if not first:
        return ReadOrder(list(range(n)), False, n, len(named))
    rest = [place for place in range(n) if place not in set(first)]
    return ReadOrder(first + rest, True, len(rest), len(named) - len(known), len(known) - len(first))


def _bare(answer: str, *, cut: bool) -> list[str]:
    numbers = re.findall(r"\d+", answer) if _ALL_NUMBERS.fullmatch(answer) else []
    return numbers[:-1] if cut and answer[-1:].isdigit() else numbers
