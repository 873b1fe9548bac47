"""The table of model outputs: every line is read as it states. A line without a value states the reason."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from lancer.prompts import decompose
from lancer.prompts.reading import Reading, Unread, read_rating
from lancer.prompts.reading_lists import read_ratings

TABLE = [json.loads(line) for line in (Path(__file__).parent / "outputs.jsonl").read_text("utf-8").splitlines()]


def stated(expected: int | str) -> Reading:
    return Reading(expected) if isinstance(expected, int) else Reading(None, Unread(expected))


@pytest.mark.parametrize("line", TABLE, ids=lambda line: json.dumps(line)[:60])
def test_every_output_is_read_as_stated(line: dict[str, Any]) -> None:
    cut = line.get("cut", False)
    if "rating" in line:
        assert read_rating(line["rating"], cut=cut) == stated(line["is"])
    elif "ratings" in line:
        assert read_ratings(line["ratings"], line["n"], cut=cut) == [stated(cell) for cell in line["is"]]
    else:
        assert decompose.parse(line["questions"], line["n"]) == line["is"]


def test_the_table_is_long_and_without_repetition() -> None:
    kinds = Counter(next(iter(line)) for line in TABLE)
    assert sum(kinds.values()) >= 300
    assert min(kinds["rating"], kinds["ratings"], kinds["questions"]) >= 50
    assert len({json.dumps(line, sort_keys=True) for line in TABLE}) == len(TABLE)


def test_the_table_has_every_reason() -> None:
    cells = [
        cell
        for line in TABLE
        if "questions" not in line
        for cell in (line["is"] if "ratings" in line else [line["is"]])
    ]
    assert {Unread(cell) for cell in cells if isinstance(cell, str)} == set(Unread)
    assert {cell for cell in cells if isinstance(cell, int)} == set(range(6))
