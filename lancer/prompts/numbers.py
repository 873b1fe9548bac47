"""A number in a model's answer → the rating it states, or why it states none; and the text made plain before that.

Field fault (LANCER's published scripts): reading the first digit makes 1 of "10" and 0 of "0-5 scale: 3".
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

from lancer.prompts.unread import Unread

# Possessive, so that neither "10" nor "3.5" is ever read in part.
NUMBER: Final = (
    r"(?<![\w.,/<\u2264\u2265$\u20ac\u00a3+-])(?<![^\w\"']>)(?<!\A>)"  # ">3" is no rating, "<score>3" is
    r"(?P<number>[-+]?\d++(?:[.,]\d++)*+)(?!\w)"
)
ECHO: Final = "\u241e"  # stands for an echoed scale in the plain text

_PLAIN: Final = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\uff0d", "-"),
        **dict.fromkeys("\u00a0\u2007\u202f\u3000", " "),
        **dict.fromkeys("*`~\u2248\u200b\u200c\u200d\u2060\ufeff\u200e\u200f", None),
        **dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb", '"'),
        "\uff1a": ":", "\uff0f": "/", "\uff0e": ".", "\u066b": ".", "\u3002": ".", "\uff0c": ",", "\uff01": "!",
        "\uff08": "(", "\uff09": ")", "\uff05": "%", "\u066a": "%",
    }
)  # fmt: skip
_OTHER_DIGITS: Final = re.compile(r"[^\D0-9]")
_POINTS: Final = re.compile(r"(?<=\d)\s*\u5206")  # "3 points" in Chinese and Japanese
_LINES: Final = re.compile(r" ?\n(?: ?\n)+ ?")
_BLANKS: Final = re.compile(r"[^\S\n]+")
_OUT_OF: Final = re.compile(
    r"\s*(?:points?\s+|stars?\s+)?(?:/|\(?\s*out\s+of\s+(?:a\s+(?:possible|maximum)\s+)?)\s*(\d++)(?!\w|[.,/]\d)", re.I
)
_RANGE: Final = re.compile(
    r"\s*(?:-|to\b|or\b|and\b|through\b)\s*(?:an?\s+)?\d{1,2}\b|,\s*\d{1,2}\s*(?:[.,;\n]|\Z)|\s*\+(?!\w)", re.I
)
_PERCENT: Final = re.compile(r"\s*(?:%|percent\b|per\s+cent\b)", re.I)
_OTHER_SCALE: Final = re.compile(
    r"\bscale\s*(?:of|from|is|between|[(:])*\s*-?\d+\s*(?:-|to|and)\s*\d+|\b\d+\s*(?:-|to)\s*\d+\s+(?:\w+\s+)?scale\b"
    r"|\b\d+\s*-?\s*point\s+(?:\w+\s+)?scale\b|\bscale\s+(?:out\s+)?of\s+\d+\b"
    r"|\b(?:rating|score|grade)\s*(?:\(\s*\d+\s*(?:-|to)\s*\d+\s*\)|\(?\s*out\s+of\s+\d+\s*\)?\s*:)",
    re.IGNORECASE,
)


def plain(text: str, scale: tuple[int, int]) -> str:
    """Digits of every script as ASCII, no emphasis, one kind of dash; echoes of the scale become `ECHO`."""
    text = text.translate(_PLAIN).replace("__", "")
    text = _OTHER_DIGITS.sub(lambda digit: str(unicodedata.decimal(digit.group())), text)
    text = _LINES.sub("\n\n", _BLANKS.sub(" ", _POINTS.sub("", text)))
    for pattern, by in _echoes(*scale):
        text = pattern.sub(by, text)
    return text


def other_scale(text: str) -> bool:
    """Whether a plain text names a scale that is not ours (ours is an `ECHO` by now)."""
    return _OTHER_SCALE.search(text) is not None


def value_at(text: str, number: re.Match[str], scale: tuple[int, int]) -> tuple[int | Unread, int]:
    """What the number matched by `NUMBER` states, and where that ends: "4 out of 5" ends after the 5."""
    end = number.end("number")
    if out_of := _OUT_OF.match(text, end):
        end = out_of.end()
        if out_of[1] != str(scale[1]):
            return Unread.other_scale, end
    elif _PERCENT.match(text, end):
        return Unread.other_scale, end
    if _RANGE.match(text, end):
        return Unread.ambiguous, end
    return _whole(number["number"], scale), end


def _whole(raw: str, scale: tuple[int, int]) -> int | Unread:
    digits = raw.lstrip("+-")
    if re.fullmatch(r"\d{1,3}(?:,\d{3})+", digits):
        return Unread.out_of_range
    if not digits.isdecimal():
        digits, _, fraction = digits.replace(",", ".").partition(".")
        if fraction.strip("0"):
            return Unread.decimal
    if raw.startswith("-") or len(digits) > len(str(scale[1])):
        return Unread.out_of_range
    return int(digits) if scale[0] <= int(digits) <= scale[1] else Unread.out_of_range


@lru_cache(maxsize=8)
def _echoes(low: int, high: int) -> list[tuple[re.Pattern[str], str]]:
    start, echo = r"(?<![\w.,/-])", f" {ECHO} "
    between = r"(?:-|to|and|through|\.\.+)"
    ladder = r"\s*[,/|]\s*(?:or\s+|and\s+)?".join(str(k) for k in range(low, high + 1))
    patterns = (
        # (0 = nothing, 5 = everything), [0, 5], (0-5); but (0/5) is a rating
        (
            rf"[(\[](?![^()\[\]\n]{{0,99}}\b{low}\s*(?:/|out\s+of)\s*{high})[^()\[\]\n]{{0,60}}\b{low}\b"
            rf"[^()\[\]\n]{{1,80}}\b{high}\b[^()\[\]\n]{{0,60}}[)\]]",
            echo,
        ),
        (rf"\(\s*(?:max\w*|up\s+to|out\s+of)\b[^()\n]{{0,12}}\b{high}\b[^()\n]{{0,20}}\)", echo),
        (rf"\bout\s+of\s+{high}\s*(?=[:=])", echo),
        (rf"{start}{ladder}(?![\w/]|[.,]\d)", echo),
        # where 0 is … and 5 is …; 0 (worst) to 5 (best); with 5 being the best
        (
            rf"\b(?:where|with)\s+{low}\b[^.\n]{{1,80}}?\b{high}\b(?:\s*(?:=|is|being|means?|meaning)\b[^.,:;\n]*)?",
            echo,
        ),
        (rf"{start}{low}\s*\([^()\n]{{1,60}}\)\s*{between}\s*{high}\s*\([^()\n]{{1,60}}\)", echo),
        (
            rf"(?<![:=]\s)(?<![:=]){start}\d\s*"
            r"(?:(?:being|meaning|means|indicates|represents)\b|=(?=\s*[a-z]))[^,.;:\n]{0,60}",
            " ",
        ),
        # 0-5, from 0 to 5, a 0 to 5 scale, a 5-point scale
        (rf"{start}{low}\s*{between}\s*{high}(?![\w%/]|[.,]\d)", echo),
        (rf"\b{high}\s*-?\s*point\s+(?:\w+\s+)?scale\b|\bscale\s+(?:out\s+)?of\s+{high}\b", echo),
    )
    return [(re.compile(pattern, re.IGNORECASE), by) for pattern, by in patterns]
