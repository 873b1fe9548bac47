from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancer.text.sentences import Span, sentence_spans


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Dr. Smith paid $3.5 to J. R. Brown, Ph.D., in Jan. 2020.  He (see Fig. 3) left. What? It ended at 5 p.m.",
            [
                "Dr. Smith paid $3.5 to J. R. Brown, Ph.D., in Jan. 2020.",
                "He (see Fig. 3) left.",
                "What?",
                "It ended at 5 p.m.",
            ],
        ),
        ("日本の首都は東京です。人口は多い。はい", ["日本の首都は東京です。", "人口は多い。", "はい"]),
        ("گزارش اول این است. گزارش دوم؟ بله.", ["گزارش اول این است.", "گزارش دوم؟", "بله."]),
        ("Of beavers\nThe beavers are back. They build.", ["Of beavers", "The beavers are back.", "They build."]),
        ("A line that is\nwrapped here. And more.", ["A line that is\nwrapped here.", "And more."]),
        ("Heading\r\n\r\nno full stop \r\n \r\nlast", ["Heading", "no full stop", "last"]),
        ("  no end ", ["no end"]),
        (" \n\t\u3000", []),
        ("", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


# sentencex panics on the blanks among these when it is given them as they are.
OTHERS = [
    "\r\n",
    "e.g.",
    "Dr.",
    "\n\n",
    "2.",
    "a\u0301",
    "\U0001f600",
    "\ud800",
    "\u4e2d",
    "\u061f",
    "\u200b",
    "\ufeff",
]
BLANKS = ["\u2028", "\u00a0", "\u3000", "\u0085", "\x1c", "\x0c", "\0"]
PIECES = st.sampled_from([*"aB.!?\u2026\u3002\uff01()\"'\u201c\u201d\u00ab\u00bb[] \n\t", *OTHERS, *BLANKS])


@given(st.one_of(st.text(), st.lists(PIECES, max_size=60).map("".join)))
def test_spans_are_sorted_disjoint_inside_and_hold_every_character_that_is_no_blank(text: str) -> None:
    spans = sentence_spans(text)
    assert spans == sorted(spans)
    end = 0
    for span in [*spans, Span(len(text), len(text))]:
        assert not text[end : span.start].strip()
        assert span.start >= end
        end = span.end
    assert end == len(text)
    assert all(text[start:stop].strip() == text[start:stop] != "" for start, stop in spans)
    assert sentence_spans(text) == spans
