"""The share of common wording, by hand-counted n-grams."""

from __future__ import annotations

import pytest

from lancer.text.near_duplicates import ngram_jaccard


@pytest.mark.parametrize(
    ("a", "b", "n", "expected"),
    [
        ("a b c d e f", "a b c d e f", 5, 1.0),
        ("The cat, sat on the mat!", "the CAT sat on the mat", 5, 1.0),
        ("a b c d e f", "a b c d e x", 5, 1 / 3),  # abcde | bcdef | bcdex
        ("a b c d", "b c d e", 2, 2 / 4),  # ab bc cd | bc cd de
        ("a b", "a b", 5, 1.0),
        ("a b", "a c", 5, 0.0),
        ("", "", 5, 0.0),
        ("a", "", 5, 0.0),
    ],
)
def test_jaccard(a: str, b: str, n: int, expected: float) -> None:
    assert ngram_jaccard(a, b, n) == pytest.approx(expected)
