"""A model's output → the rating 0–5 it gives, or why it gives none (LANCER, section 4, "Answerability Judgments").

Rules, in order:
1. What comes before the end of a thinking block is not the answer; an unfinished block is unread.
2. JSON objects: the member that is called rating, score, grade …, or the only one; the text around them counts as well.
3. In free text a number counts where it stands as the rating: after a label ("rating: 3", "I rate it 3"), with its
   denominator ("4/5", "4 out of 5"), alone on the first or last line or as the last sentence, or first with an
   explanation behind ("3 - names two causes"). Echoes of the scale, quotations and all other numbers do not count.
4. A number that is called final ("final rating: 4", "overall", "so", \\boxed) outranks the others; "answer: 3" counts
   only where nothing else does. Those of one rank must agree: two ratings are ambiguous, never the first or the last.
5. Only whole numbers within the scale are ratings ("4.0" is 4). "10", "-1", "3.5", "3-4", "4/10", "80 %" are unread,
   and so is a text that names another scale. Digits of any script count; number words do not.
"""

from __future__ import annotations

import math
import re
import unicodedata
from functools import lru_cache
from typing import Final

from lancer.prompts import unread
from lancer.prompts.answer import answer_of
from lancer.prompts.json_values import JsonObject, json_values
from lancer.prompts.numbers import other_scale, plain
from lancer.prompts.rating_phrases import Candidate, candidates
from lancer.prompts.unread import Reading, Unread

__all__ = ["SCALE", "Reading", "Unread", "of_json", "of_text", "read_rating", "without_rating"]

SCALE: Final = (0, 5)

_RATING_KEY: Final = re.compile(
    r"(?:(?!max|min|scale)\w+[ _-])?(?:rating|score|grade|answerability|relevance|\u8bc4\u5206|\u5f97\u5206)"
    r"(?:[ _-]value)?",
    re.IGNORECASE,
)
_REFUSAL: Final = re.compile(
    r"\b(?:I|we)(?:['\u2019]m|\s+am|\s+are)?\s+(?:\w+ly\s+)?(?:sorry|afraid|unable|not\s+able|cannot|can['\u2019]t|can\s+not|"
    r"won['\u2019]t|will\s+not|apologi[sz]e|do\s+not|don['\u2019]t|decline|must\s+decline|refuse)\b"
    r"|\bas\s+an?\s+(?:AI|artificial|(?:large\s+)?language)\b|\A\W*(?:sorry|apologies|unfortunately|N/?A\b)"
    r"|\b(?:cannot|can['\u2019]t|unable\s+to|impossible\s+to|not\s+possible\s+to)\s+(?:be\s+)?"
    r"(?:rated?|give|provide|assess|judge|determine|answer|assist|help|comply|evaluate|assign)"
    r"|\u65e0\u6cd5|\u62b1\u6b49",
    re.IGNORECASE,
)
_QUOTED: Final = re.compile(r'"([^"\n]*)"')
_NUMBERS_ONLY: Final = re.compile(r"[\d.]+(?:[\s,;|]+[\d.]+)+")


@lru_cache(maxsize=1024)  # most answers are one of six digits, and reading one takes 20 microseconds
def read_rating(text: str, *, scale: tuple[int, int] = SCALE, cut: bool = False) -> Reading:
    """The rating that a model's whole output gives.

    `cut`: the engine stopped the output at its token limit, so a number at the very end may go on ("1" of "10") and is
    unread.
    """
    answer = answer_of(text)
    return Reading(None, Unread.unfinished_thinking) if answer is None else of_text(answer, scale=scale, cut=cut)


def of_text(answer: str, *, scale: tuple[int, int] = SCALE, cut: bool = False) -> Reading:
    """As `read_rating`, of an answer without its thinking."""
    values, around = json_values(answer)
    objects = [value for value in values if isinstance(value, JsonObject)]
    lists = [item for value in values if isinstance(value, list) and not around for item in value]
    text = plain(around if objects else answer, scale).strip()
    if other_scale(text):
        return Reading(None, Unread.other_scale)
    found = _free_text(text, scale, cut)
    best = max((candidate.rank for candidate in found), default=0)
    stated = {candidate.outcome for candidate in found if candidate.rank == best}
    stated |= {of_json(value, scale) for value in (*objects, *lists)}
    outcome = unread.agreed(stated)
    return unread.of(without_rating(answer) if outcome is None else outcome)


def of_json(value: object, scale: tuple[int, int] = SCALE) -> int | Unread:
    """What one JSON value states: a number, a text with a rating in it, or an object with a member for it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if scale[0] <= value <= scale[1] else Unread.out_of_range
    if isinstance(value, float):
        whole = of_json(int(value), scale) if value.is_integer() else Unread.decimal
        return whole if math.isfinite(value) else Unread.no_number
    if isinstance(value, str):
        reading = of_text(value, scale=scale)
        return Unread(reading.reason) if reading.value is None else reading.value
    if isinstance(value, list) and len(value) == 1:
        return of_json(value[0], scale)
    if isinstance(value, JsonObject):
        members = [member for key, member in value.members if _RATING_KEY.fullmatch(key.strip())]
        if not members and len(value.members) == 1:
            members = [value.members[0][1]]
        outcome = unread.agreed({of_json(member, scale) for member in members})
        return Unread.no_number if outcome is None else outcome
    return Unread.no_number


def without_rating(answer: str) -> Unread:
    """Why there is no rating in an answer that has none: it is empty, declines, or speaks of other things."""
    if not any(character.isalnum() or unicodedata.category(character) == "So" for character in answer):
        return Unread.empty
    if _NUMBERS_ONLY.fullmatch(answer):
        return Unread.ambiguous
    return Unread.refusal if _REFUSAL.search(answer) else Unread.no_number


def _free_text(text: str, scale: tuple[int, int], cut: bool) -> list[Candidate]:
    """Candidates outside quotations of three words and more: a judge quotes the document, and documents give orders."""
    if text.count('"') == 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    text = _QUOTED.sub(lambda quoted: " " if len(quoted[1].split()) > 2 else quoted[0], text)
    found = list(candidates(text, scale))
    if not cut:
        return found
    return [Candidate(Unread.cut_off, c.rank, c.end) if c.end == len(text) else c for c in found]
