"""A model's output → the sub-questions in it (LANCER, section 4, "Synthetic Sub-question Generation").

Rules: what comes before the end of a thinking block is not the answer, an unfinished block has none. Questions come
from JSON (a list, numbered keys, objects with a question each) or else from lines, of which one may hold several.
Numbering, bullets, labels and emphasis are taken off; what does not end in a question mark, remarks behind it, offers
of further help and repetitions are left out. A question that was cut off is no question.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from lancer.prompts.answer import answer_of
from lancer.prompts.json_values import JsonObject, json_values

MAX_WORDS: Final = 64  # a longer "question" is a model that repeats itself

_MARKS = "?\uff1f\u061f"
_CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_STARTER = (
    r"(?:who|whom|whose|what|when|where|why|how|which|is|are|was|were|do|does|did|can|could|should|will|would|has|have|"
    r"in|to|at|by|for|on|under)\b"
)
_LEAD: Final = re.compile(
    r"""\s*(?:
    (?:here|these|the\s+following|below|sure|certainly|of\s+course|okay)\b[^?:\n]{0,120}:\s
    | \[\s?[xX]?\s?\]\s | [-*\u2022\u2013\u2014\u25cf\u25aa\u2192>#|]+\s*
    | \(?\d{1,3}(?:\.\d{1,2})*\s*[.):\]](?!\d)\s* | \d{1,3}\s+[-\u2013\u2014|]\s+
    | \d{1,2}\.\d{1,2}\s+(?=(?-i:[A-Z\u00bf])) | [0-9]\ufe0f?\u20e3\s* | [\u2460-\u2473]\s*
    | \(?(?-i:[a-z]|[ivx]{2,4})[.)]\s+ | \(?[A-Z]\)\s+ | [A-J]\.\s+(?=""" + _STARTER + r""")
    | ["']?(?:sub[-_\s]?)?question\s*(?:\d{1,3}|one|two|three|four|five|six|seven|eight|nine|ten)?\s*["'*]*
      \s*[:.)\u2013-]\s*
    | q\s?\d{0,3}\s*["'*]*\s*[:.)]\s* | q\d{1,3}\s+ | "\d{1,3}"\s*:\s*
    )""",
    re.IGNORECASE | re.VERBOSE,
)  # fmt: skip
_BETWEEN: Final = re.compile(
    rf"(?:(?<=[{_MARKS}])|(?<=[{_MARKS}][\"'\u201d\u2019)*_]))[,;]?\s+"
    rf"(?=[\"'\u201c\u2018(\[*_`#-]*\s*(?:\d{{1,3}}\s*[.):]|[A-Z\u00bf]|[^\x00-\x7f]))|(?<=\uff1f)(?=\S)"
)
_REMARK: Final = re.compile(rf"([{_MARKS}])[\"'*_]*\s*(?:[(\[][^?]*|[-\u2013\u2014\u2192]+\s[^?]*|\|[^?]*)\Z")
_OFFER: Final = re.compile(
    r"(?:would\s+you|do\s+you\s+(?:want|need)|shall\s+i|should\s+i|can\s+i|may\s+i|how\s+(?:can|may)\s+i|"
    r"is\s+there\s+anything|are\s+there\s+any\s+other\s+questions|does\s+this\s+help|did\s+i|what\s+do\s+you\s+think)\b",
    re.IGNORECASE,
)
_REASON: Final = re.compile(r"\W*(?:reason|rationale|explanation|purpose|why\s+it\s+matters|note)\W*:", re.IGNORECASE)
_TAG: Final = re.compile(
    r"</?(?:(?:sub[-_]?)?questions?|q|item|li|ol|ul|p|b|i|strong|em|br)\s*\d*\s*/?>", re.IGNORECASE
)
_QUESTION_KEY: Final = re.compile(r"(?:sub[-_ ]?)?(?:question|query|q)(?:[-_ ]?text)?|text", re.IGNORECASE)
_WORD: Final = re.compile(rf"[{_CJK}]+|[^\W{_CJK}]+")
_EDGES: Final = "`*_,|\\ \t\r\n"
_CLOSED: Final = {"[": "]", "{": "}", "(": ")"}
_OPENED: Final = {closing: opening for opening, closing in _CLOSED.items()}
_PAIRED: Final = {'"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019", "\u00ab": "\u00bb"}


def read_questions(output: str, n: int) -> list[str]:
    """The distinct sub-questions in a model's output, at most `n`, in order; [] when there are none."""
    answer = answer_of(output)
    if answer is None:
        return []
    values, _ = json_values(answer)
    return distinct(list(_strings(values)), n) or distinct(answer.splitlines(), n)


def distinct(lines: Sequence[str], n: int) -> list[str]:
    """The first `n` questions in `lines` of which no two have the same numbers and nearly the same words.

    Nearly: Jaccard index of the words (of pairs of characters in Chinese and Japanese) above .8.
    """
    kept: list[str] = []
    bags: list[frozenset[str]] = []
    for question in _questions(lines):
        words = frozenset(_words(question))
        if any(len(words & bag) > 0.8 * len(words | bag) and _numbers(words) == _numbers(bag) for bag in bags):
            continue
        kept.append(question)
        bags.append(words)
        if len(kept) == n:
            break
    return kept


def _questions(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if _REASON.match(line):
            continue
        for piece in _BETWEEN.split(_TAG.sub(" ", line)):
            question = _clean(piece)
            if question.endswith(tuple(_MARKS)) and not _OFFER.match(question):
                words = _words(question)
                if 3 <= len(words) <= MAX_WORDS:
                    yield question


def _clean(piece: str) -> str:
    text = _REMARK.sub(r"\1", piece.replace("**", "").replace("__", "").strip(_EDGES))
    while (barer := _barer(text)) != text:
        text = barer
    return text


def _barer(text: str) -> str:
    """`text` without one more layer of numbering, quotes or unclosed brackets."""
    text = _LEAD.sub("", text, count=1) if _LEAD.match(text) else text
    if text[:1] in _CLOSED and _CLOSED[text[0]] not in text:
        text = text[1:]
    if text[-1:] in _OPENED and _OPENED[text[-1]] not in text:
        text = text[:-1]
    if len(text) > 1 and _PAIRED.get(text[0]) == text[-1] and text[0] not in text[1:-1]:
        text = text[1:-1]
    elif text.count('"') == 1:
        text = text.strip('"')
    return text.strip(_EDGES)


def _words(question: str) -> list[str]:
    words: list[str] = []
    for run in _WORD.findall(question.casefold()):
        pairs = [run[i : i + 2] for i in range(len(run) - 1)] if re.match(rf"[{_CJK}]", run) else []
        words += pairs or [run]
    return words


def _numbers(words: frozenset[str]) -> set[str]:
    return {word for word in words if any(map(str.isdigit, word))}


def _strings(value: object) -> Iterator[str]:
    """Texts in JSON that may be questions; of an object with named members only those named so."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
    elif isinstance(value, JsonObject):
        named = [member for key, member in value.members if _QUESTION_KEY.fullmatch(key)]
        for member in named or [member for _, member in value.members]:
            yield from _strings(member)
