"""What holds for every output; single outputs are in `outputs.jsonl`."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancer.prompts import decompose
from lancer.prompts.reading import Reading, Unread, read_rating
from lancer.prompts.reading_lists import read_ratings

WORDS = [
    "rating",
    "Rating:",
    "score of",
    "3",
    "10",
    "4/5",
    "0-5",
    "scale",
    "{",
    "}",
    '"rating": 2',
    "[",
    "]",
    ",",
    "\n",
    "1.",
    "2:",
]
OUTPUTS = st.text(max_size=60) | st.lists(st.sampled_from([*WORDS, "<think>", "</think>", "not", "?", "|"])).map(
    " ".join
)


def well_formed(reading: Reading) -> bool:
    if reading.value is None:
        return isinstance(reading.reason, Unread)
    return reading.value in range(6) and reading.reason == ""


@given(OUTPUTS, st.booleans())
def test_a_reading_has_a_value_within_the_scale_or_a_reason(text: str, cut: bool) -> None:
    assert well_formed(read_rating(text, cut=cut))


@given(OUTPUTS, st.integers(1, 6), st.booleans())
def test_a_list_has_a_reading_for_each_sub_question(text: str, n: int, cut: bool) -> None:
    readings = read_ratings(text, n, cut=cut)
    assert len(readings) == n
    assert all(map(well_formed, readings))


@given(st.dictionaries(st.integers(1, 8), st.integers(0, 5)), st.sampled_from(["json", "lines", "pairs"]))
def test_a_missing_or_extra_cell_never_shifts_its_neighbours(cells: dict[int, int], form: str) -> None:
    if form == "json":
        text = "{" + ", ".join(f'"{number}": {rating}' for number, rating in cells.items()) + "}"
    elif form == "lines":
        text = "\n".join(f"{number}. {rating}" for number, rating in cells.items())
    else:
        text = ", ".join(f"{number}: {rating}" for number, rating in cells.items())
    for number, reading in enumerate(read_ratings(text, 5), 1):
        assert reading.value == cells.get(number)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=8), st.integers(2, 8))
def test_a_list_without_keys_counts_only_at_its_full_length(ratings: list[int], n: int) -> None:
    for text in (str(ratings), "\n".join(map(str, ratings))):
        values = [reading.value for reading in read_ratings(text, n)]
        assert values == (ratings if len(ratings) == n else [None] * n)


@given(st.integers(6, 10**6))
def test_a_number_out_of_range_is_never_read_in_part(number: int) -> None:
    for text in (f"{number}", f"Rating: {number}", f'{{"rating": {number}}}', f"I rate it {number}.", f"1. {number}"):
        assert read_rating(text).value is None


def test_another_scale() -> None:
    assert read_rating("Rating: 3", scale=(0, 3)) == Reading(3)
    assert read_rating("0-3 scale: 2", scale=(0, 3)) == Reading(2)
    assert read_rating("2/3", scale=(0, 3)) == Reading(2)
    assert read_rating("4", scale=(0, 3)) == Reading(None, Unread.out_of_range)


@pytest.mark.parametrize(
    "piece",
    [
        "(",
        "[",
        "{",
        '"',
        " ",
        "\n",
        "- ",
        "1. ",
        "rating ",
        "rating:\n",
        "scale of ",
        "is a ",
        "so ",
        "0 (",
        "<think>",
        "9",
        "? ",
    ],
)
def test_an_endless_output_is_read_in_time(piece: str) -> None:
    text = "rating" + piece * (20_000 // len(piece)) + "x"
    began = time.process_time()
    read_rating(text)
    read_ratings(text, 10)
    decompose.parse(text, 10)
    # CPU seconds, so that a busy machine does not count: 0.3 s measured; a quadratic pattern takes minutes.
    assert time.process_time() - began < 15
