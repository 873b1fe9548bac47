from __future__ import annotations

from collections.abc import Callable

import pytest

from lancer.text.fitting import cut, even_limit, windows


def up_to(words: int) -> Callable[[str], bool]:
    return lambda text: len(text.split()) <= words


TEXT = "One two three. Four five! Six seven eight? Nine."


@pytest.mark.parametrize(
    ("words", "kept"),
    [(9, TEXT), (8, "One two three. Four five! Six seven eight?"), (7, "One two three. Four five!"), (3, TEXT[:14])],
)
def test_a_text_is_cut_where_a_sentence_ends(words: int, kept: str) -> None:
    assert cut(TEXT, up_to(words)) == kept


def test_without_a_sentence_that_fits_it_is_cut_between_words_and_then_anywhere() -> None:
    assert cut("one two three four", up_to(2)) == "one two"
    assert cut("abcdefgh", lambda text: len(text) <= 3) == "abc"


def test_where_nothing_fits_the_text_stays() -> None:
    assert cut(TEXT, lambda text: False) == TEXT
    assert windows(TEXT, lambda text: False) == [TEXT]


def test_closing_marks_and_lines_belong_to_their_sentence() -> None:
    assert cut('He said "no." Then he left.', up_to(4)) == 'He said "no."'
    assert cut("A heading\nThen a text that goes on.", up_to(5)) == "A heading"
    assert cut("\u6e56\u5f88\u6df1\u3002\u6e56\u5f88\u5927\u3002", lambda t: len(t) <= 5) == "\u6e56\u5f88\u6df1\u3002"
    assert cut("Version 3.5 is out now. It works.", up_to(6)) == "Version 3.5 is out now."


def test_windows_overlap_by_whole_sentences_and_hold_everything() -> None:
    text = " ".join(f"Sentence {i} is here." for i in range(12))
    found = windows(text, up_to(20))
    assert found[0] == " ".join(f"Sentence {i} is here." for i in range(5))
    assert found[1].startswith("Sentence 4 is here.")
    assert all(up_to(20)(piece) for piece in found)
    assert [sum(f"Sentence {i} " in piece for piece in found) for i in range(12)] == [
        1,
        1,
        1,
        1,
        2,
        1,
        1,
        1,
        2,
        1,
        1,
        1,
    ]


def test_windows_of_a_text_without_sentences_follow_each_other() -> None:
    text = " ".join(map(str, range(10)))
    assert windows(text, up_to(4)) == ["0 1 2 3", "4 5 6 7", "8 9"]
    assert windows("abcdefg", lambda piece: len(piece) <= 3) == ["abc", "def", "g"]
    assert windows(text, up_to(10)) == [text]


@pytest.mark.parametrize(
    ("lengths", "room", "limit"),
    [
        ([], 0, None),
        ([3, 4], 7, None),
        ([3, 4], 6, 3),
        ([10, 2, 10], 14, 6),  # what a short one leaves is for the long ones
        ([10, 2, 10], 15, 6),
        ([5, 5], -1, -1),
    ],
)
def test_the_longest_are_cut_to_one_length(lengths: list[int], room: int, limit: int | None) -> None:
    assert even_limit(lengths, room) == limit
    if limit is not None and limit > 0:
        assert room - len(lengths) < sum(min(length, limit) for length in lengths) <= room
