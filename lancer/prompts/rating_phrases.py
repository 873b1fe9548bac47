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


_CRITERION = r"relevance|completeness|coverage|precision|quality"
_LABEL = (
    rf"(?:ratings?|scores?|grades?|verdict|judge?ments?|evaluation|assessment|answerability|decision|{_CRITERION}|"
    r"\u8bc4\u5206|\u8a55\u5206|\u5f97\u5206|\u6253\u5206|\u5206\u6570|\u8a55\u4fa1)"
)
_OTHER_LABEL = (
    r"(?:answer|result|conclusion|output|response|digit|rate|assistant|bewertung|punktzahl|note|nota|calificaci[o\u00f3]n|"
    r"puntuaci[o\u00f3]n|\u043e\u0446\u0435\u043d\u043a\u0430|\u7b54\u6848|\u56de\u7b54)"
)
_SO = r"(?:so|thus|hence|therefore|finally|overall)"
_FINAL = r"(?P<final>\b(?:final|overall|so|thus|hence|therefore)\b[\s,:]*(?:(?:the|my|is|a|final|overall)\s+)*)?"
_CLOSERS = r"[\s\"')\]}>|]*"
_SIGN = rf"(?::|=>?|->|\u2192|>|\||-(?=\s))[\s\"'(\[{{<|>{ECHO}]*(?:(?:is|of)\s+)?"
_WORD = r"(?:(?:zero|one|two|three|four|five)\s*\()?"
_GRADE = r"(?:(?:solid|clear|weak|strong|low|high|full|perfect)\s+)?"
_ARTICLE = rf"(?:(?:an?|about|only|just|exactly)\s+)?{_GRADE}"
_INEXACT = r"not|never|than|to|neither|nor|least|most|more|less|above|below|over|under|between|nearly|almost"
_GAP = rf"(?:\s+(?!(?:{_INEXACT})\b)[\w'-]+){{0,6}}?\s+"
# After a number in running prose: an end, or words that go on about the rating; a noun ("3 causes") is no rating.
_GOES_ON = (
    r"(?:because|since|as|for|due|given|based|on|or|and|but|which|with|out|points?|stars?|overall|"
    r"is\s+(?:appropriate|warranted|justified|given|assigned|fair))\b"
)
_AFTER = rf"(?=\s*(?:\Z|[.,;:!?)\]}}\"'|/\n]|-+\s|{ECHO}|\(|{_GOES_ON}))"
# After a label with a sign also signs ("3-4", "60%": judged in value_at) and the beginning of an explanation.
_AFTER_SIGN = (
    rf"(?=\s*(?:\Z|[^\w\s]|_|[^\x00-\x7f]|(?-i:[A-Z])|{_GOES_ON}|(?:to|percent|the|this|it|its|it's|partial\w*|partly|"
    r"full\w*|complete\w*|answers?|has|mostly|only|while|although|though|so|where|when|not|no|means)\b))"
)
_NEGATED: Final = re.compile(
    r"(?:\bnot|n't|\bcannot|\bnever|\bunable\s+to|\bthan|\bto|\bif)\s+(?:\w+\s+){0,2}\Z", re.IGNORECASE
)


def _compile(*patterns: str) -> list[re.Pattern[str]]:
    return [re.compile(pattern, re.IGNORECASE) for pattern in patterns]


# A label with a sign, or brackets of its own.
_MARKED: Final = _compile(
    rf"{_FINAL}\b{_LABEL}{_CLOSERS}(?:{ECHO}\s*)?(?:\s*\b(?:for|of|on)\b[^\n.:=?]{{0,60}})?"
    rf"(?:\s+(?:is|was|would\s+be))?{_CLOSERS}{_SIGN}{_WORD}{NUMBER}{_AFTER_SIGN}",
    rf"{_FINAL}\b{_LABEL}\s*(?:{ECHO})?[^\S\n]*\n[\s>|-]*{NUMBER}(?=\s*(?:\n|\Z|[.,(/]|-\s))",
    rf"(?P<final>\b(?:final|overall)\b)\s*{_SIGN}{NUMBER}{_AFTER_SIGN}",
    rf"(?P<final>\\boxed)\s*\{{\s*(?:\\text\s*\{{\s*)?{NUMBER}",
    rf"(?P<final><answer>)\s*{NUMBER}",
    rf"\[\[\s*{NUMBER}\s*\]\]",
    rf"{ECHO}\s*(?:scale|range)?\s*[:=]\s*{NUMBER}{_AFTER_SIGN}",
)
_FALLBACK: Final = _compile(rf"\b{_OTHER_LABEL}{_CLOSERS}{_SIGN}{NUMBER}{_AFTER}")
# Running prose: the phrase must not be preceded by a negation. Documents speak of scores and grades too ("a final score
# of 3"), so these nouns need the judge's verb, and only ratings are ever final.
_VERDICT = r"(?:rate|give|giving|assign|score|grade|choose|chose|say|select|pick|go|settle|award)"
_GETS = r"(?:deserves?|merits?|gets?|earns?|receives?|warrants?|gives?\s+(?:it|this))"
_PROSE: Final = _compile(
    rf"\b{_LABEL}\s+(?:{ECHO}\s*)?{NUMBER}{_AFTER}",
    rf"{_FINAL}\b(?:rating|verdict)\b(?:{_GAP}|\s+)(?:of|is|was|be|as|at)\s+{_ARTICLE}{_WORD}{NUMBER}{_AFTER}",
    rf"\b(?:the|my|its)\s+(?:\w+\s+)?(?:score|grade)\b(?:{_GAP}|\s+)(?:is|should\s+be|would\s+be)\s+{_ARTICLE}{NUMBER}{_AFTER}",
    rf"\b(?:I|is|be)\b(?:\s+(?!(?:cannot|can|could|{_INEXACT})\b)\w+){{0,2}}?\s+{_VERDICT}(?:ed|d|n)?{_GAP}{NUMBER}{_AFTER}",
    rf"\bI(?:'d|'ll|'m)(?:\s+\w+ly)?\s+{_VERDICT}{_GAP}{NUMBER}{_AFTER}",
    rf"\b(?:rated?|graded?)\s+(?:(?:it|this|the\s+\w+)\s+)?(?:(?:as|at|with)\s+)?{_ARTICLE}{NUMBER}{_AFTER}",
    rf"(?:\bis|'s|\b{_GETS})\s+(?:only\s+|just\s+)?an?\s+{_GRADE}(?:(?:final\s+)?(?:score|grade)\s+of\s+)?{NUMBER}{_AFTER}",
    rf"{ECHO}[^.\n\d]{{0,80}}?\s{NUMBER}{_AFTER}",
    rf"(?P<final>\b{_SO}\b[\s,:]*(?:(?:it|this|that|it's|I|I'd|is|say|choose|go|with|an?)\s+)*){NUMBER}(?=[\s.!]*\Z)",
)
# With its own denominator: "4/5", "4 out of 5".
_OUT_OF: Final = re.compile(
    rf"{NUMBER}(?=\s*(?:points?\s+|stars?\s+)?(?:/|\(?\s*out\s+of\b)\s*(?:a\s+\w+\s+)?\d)", re.IGNORECASE
)
_OUT_OF_AFTER: Final = re.compile(_AFTER, re.IGNORECASE)
# Alone on the first or last line, or as the last sentence.
_OPENERS = r"[\s\"'(\[{<#>|-]*"
_UNIT = r"(?:\s*(?:points?|stars?|percent)|\s*(?:-|to|or|and)\s*\d{1,2}|[%+])?"
_LONE: Final = _compile(
    rf"\A{_OPENERS}{_WORD}{NUMBER}{_UNIT}[\s\"')\]}}>|.!,{ECHO}]*(?=\n|\Z)",
    rf"(?:\n|(?<!\bno)(?<!\bfig)(?<!\bvol)[.!?]\"?\s){_OPENERS}{NUMBER}{_UNIT}[\s\"')\]}}>|.!{ECHO}]*\Z",
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
        if candidate.end > match.end("number") and _OUT_OF_AFTER.match(text, candidate.end):
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
