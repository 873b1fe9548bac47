"""Where in a plain answer a number stands as the rating: the phrases that models use.

Every phrase that fits gives a candidate with a rank; those of the highest rank must agree (`lancer.prompts.reading`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lancer.prompts.numbers import ECHO, NUMBER, value_at
from lancer.prompts.unread import Unread

FINAL: Final = 2  # called final, overall, or introduced by "so"
USUAL: Final = 1
FALLBACK: Final = 0  # "answer: 3" may answer the question itself


@dataclass(frozen=True)
class Candidate:
    """One number that stands as a rating; `end` is where it ends in the text."""

    outcome: int | Unread
    rank: int
    end: int


_LABEL = (
    r"(?:ratings?|scores?|grades?|verdict|judge?ments?|evaluation|assessment|answerability|relevance|decision|"
    r"\u8bc4\u5206|\u8a55\u5206|\u5f97\u5206|\u6253\u5206|\u5206\u6570|\u8a55\u4fa1)"
)
_FINAL = r"(?P<final>\b(?:final|overall|so|thus|hence|therefore)\b[\s,:]*(?:(?:the|my|is|a|final|overall)\s+)*)?"
_CLOSERS = r"[\s\"')\]}>|]*"
_SIGN = rf"(?::|=>?|->|\u2192|>|\||-(?=\s))[\s\"'(\[{{<|>{ECHO}]*(?:(?:is|of)\s+)?"
_WORD = r"(?:(?:zero|one|two|three|four|five)\s*\()?"
_GRADE = r"(?:(?:solid|clear|weak|strong|low|high|full|perfect)\s+)?"
_ARTICLE = rf"(?:(?:an?|about|only|just|exactly)\s+)?{_GRADE}"
_GAP = r"(?:\s+(?!(?:not|never|than|to|neither)\b)[\w'-]+){0,6}?\s+"
# After a number in running prose: an end, or words that go on about the rating; a noun ("3 causes") is no rating.
_AFTER = (
    rf"(?=\s*(?:\Z|[.,;:!?)\]}}\"'|/\n]|-+\s|{ECHO}|\("
    r"|(?:because|since|as|for|due|given|based|on|but|which|with|out|points?|stars?|overall)\b))"
)
_NEGATED: Final = re.compile(
    r"(?:\bnot|n't|\bcannot|\bnever|\bunable\s+to|\bthan|\bto|\bif)\s+(?:\w+\s+)?\Z", re.IGNORECASE
)


def _compile(*patterns: str) -> list[re.Pattern[str]]:
    return [re.compile(pattern, re.IGNORECASE) for pattern in patterns]


# A label with a sign, or brackets of its own: whatever follows the number.
_MARKED: Final = _compile(
    rf"{_FINAL}\b{_LABEL}{_CLOSERS}(?:{ECHO}\s*)?(?:\s*\b(?:for|of|on)\b[^\n.:=?]{{0,60}})?"
    rf"(?:\s+(?:is|was|would\s+be))?{_CLOSERS}{_SIGN}{_WORD}{NUMBER}",
    rf"{_FINAL}\b{_LABEL}\s*(?:{ECHO})?[^\S\n]*\n[\s>|-]*{NUMBER}(?=\s*(?:\n|\Z|[.,(/]|-\s))",
    rf"(?P<final>\b(?:final|overall)\b)\s*{_SIGN}{NUMBER}",
    rf"(?P<final>\\boxed)\s*\{{\s*(?:\\text\s*\{{\s*)?{NUMBER}",
    rf"(?P<final><answer>)\s*{NUMBER}",
    rf"\[\[\s*{NUMBER}\s*\]\]",
    rf"{ECHO}\s*(?:scale|range)?\s*[:=]\s*{NUMBER}",
)
_FALLBACK: Final = _compile(rf"\b(?:answer|result|conclusion){_CLOSERS}{_SIGN}{NUMBER}{_AFTER}")
# Running prose: the number must not be followed by what it counts, the phrase not preceded by a negation.
_PROSE: Final = _compile(
    rf"{_FINAL}\b{_LABEL}\s+(?:{ECHO}\s*)?{NUMBER}{_AFTER}",
    rf"{_FINAL}\b(?:rating|score|grade|verdict)\b(?:{_GAP}|\s+)(?:of|is|was|be|as|at)\s+{_ARTICLE}{_WORD}{NUMBER}{_AFTER}",
    rf"{_FINAL}\bI(?:'d|'ll|'m|\s+am|\s+would|\s+will|\s+must|\s+have\s+to)?(?:\s+\w+ly)?\s+"
    rf"(?:rate|give|giving|assign|score|grade|choose|chose|say|select|pick|go|settle|award){_GAP}{NUMBER}{_AFTER}",
    rf"{_FINAL}\b(?:rated?|graded?)\s+(?:(?:it|this|the\s+\w+)\s+)?(?:(?:as|at|with)\s+)?{_ARTICLE}{NUMBER}{_AFTER}",
    rf"{_FINAL}\b(?:is|deserves?|merits?|gets?|earns?|receives?|warrants?|gives?\s+(?:it|this))\s+(?:only\s+|just\s+)?"
    rf"an?\s+{_GRADE}{NUMBER}{_AFTER}",
    rf"{ECHO}[^.\n\d]{{0,80}}?\s{NUMBER}{_AFTER}",
    r"(?P<final>\b(?:so|thus|hence|therefore|finally|overall)\b[\s,:]*(?:(?:it|this|that|it's|I|I'd|is|say|choose|go|with|an?)\s+)*)"
    rf"{NUMBER}(?=[\s.!]*\Z)",
)
# With its own denominator: "4/5", "4 out of 5".
_OUT_OF: Final = re.compile(
    rf"{NUMBER}(?=\s*(?:points?\s+|stars?\s+)?(?:/|\(?\s*out\s+of\b)\s*(?:a\s+\w+\s+)?\d)", re.IGNORECASE
)
_OUT_OF_AFTER: Final = re.compile(_AFTER, re.IGNORECASE)
# Alone on the first or last line, or as the last sentence.
_OPENERS = r"[\s\"'(\[{<#>|-]*"
_UNIT = r"(?:\s*(?:points?|stars?|\u5206)|[%+])?"
_LONE: Final = _compile(
    rf"\A{_OPENERS}{NUMBER}{_UNIT}[\s\"')\]}}>|.!,]*(?=\n|\Z)",
    rf"(?:\n|(?<!\bno)(?<!\bfig)(?<!\bvol)[.!?]\"?\s){_OPENERS}{NUMBER}{_UNIT}[\s\"')\]}}>|.!]*\Z",
)
# First, with an explanation behind.
_LEADING: Final = re.compile(
    rf"\A[\s\"'(\[#>|]*{NUMBER}(?P<sign>[\"')\]]*\s*(?:[,:;)\]]|\.(?=\s)|-+(?=\s)|\(|(?:because|since|as)\b))",
    re.IGNORECASE,
)
_ITEM: Final = re.compile(r"^[ \t#>-]*(\d+)[.):][ \t]+\S", re.MULTILINE)


def candidates(text: str, scale: tuple[int, int]) -> Iterator[Candidate]:
    """Every number in a plain text that stands as a rating on `scale`."""
    for pattern in _MARKED:
        for match in pattern.finditer(text):
            yield _candidate(text, match, scale)
    for pattern in _FALLBACK:
        for match in pattern.finditer(text):
            yield _candidate(text, match, scale, FALLBACK)
    for pattern in _PROSE:
        for match in pattern.finditer(text):
            if not _NEGATED.search(text, max(0, match.start() - 40), match.start()):
                yield _candidate(text, match, scale)
    for match in _OUT_OF.finditer(text):
        candidate = _candidate(text, match, scale)
        if _OUT_OF_AFTER.match(text, candidate.end):
            yield candidate
    for pattern in _LONE:
        if match_ := pattern.search(text):
            yield _candidate(text, match_, scale)
    yield from _leading(text, scale)


def _leading(text: str, scale: tuple[int, int]) -> Iterator[Candidate]:
    """A number, a sign, an explanation. "1." may as well begin a list, and several numbered lines are one."""
    match = _LEADING.match(text)
    if match is None or len({item[1] for item in _ITEM.finditer(text)}) > 1:
        return
    if match["number"] == "1" and match["sign"].strip() in (".", ")"):
        yield Candidate(Unread.ambiguous, USUAL, match.end())
    else:
        yield _candidate(text, match, scale)


def _candidate(text: str, match: re.Match[str], scale: tuple[int, int], rank: int = USUAL) -> Candidate:
    outcome, end = value_at(text, match, scale)
    return Candidate(outcome, FINAL if match.groupdict().get("final") else rank, end)
