"""What reading a model's output gives: a rating, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Unread(StrEnum):
    """Why an output, or one cell of it, is no rating."""

    empty = "empty"
    no_number = "no_number"  # nothing in it stands as the rating
    out_of_range = "out_of_range"
    decimal = "decimal"
    other_scale = "other_scale"  # 4/10, 80 %, "from 1 to 10"
    refusal = "refusal"
    unfinished_thinking = "unfinished_thinking"
    ambiguous = "ambiguous"  # several ratings, a range, or cells whose order is in doubt
    cut_off = "cut_off"  # the output stops inside or right after the number
    missing = "missing"  # a keyed list without this cell
    wrong_length = "wrong_length"  # a list without keys that is too short or too long


@dataclass(frozen=True)
class Reading:
    """A rating, or None with the reason. `reason` is "" exactly when there is a value."""

    value: int | None
    reason: Unread | str = ""


def of(outcome: int | Unread) -> Reading:
    """The reading of one outcome."""
    return Reading(None, outcome) if isinstance(outcome, Unread) else Reading(outcome)


def agreed(outcomes: set[int | Unread]) -> int | Unread | None:
    """The one outcome that all candidates give; ambiguous when they differ, None without any."""
    if not outcomes:
        return None
    return next(iter(outcomes)) if len(outcomes) == 1 else Unread.ambiguous
