from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from lancer import schema
from lancer.schema import Scale
from lancer.stages.base import call
from lancer.stages.select import Select, SelectConfig
from tests.scripted import Engines


def batch(stage: Select, matrix: list[list[int | None]], sub_questions: int = 2) -> pa.Table:
    row: dict[str, Any] = {
        "query_id": "q",
        "candidates": [{"doc_id": f"d{i}", "score": 0.0, "has_text": True} for i in range(len(matrix))],
        "sub_questions": [{"id": f"s{j}", "text": "?"} for j in range(sub_questions)],
        "ratings": matrix,
    }
    return pa.Table.from_pylist([row], schema=pa.schema([schema.QUERY_ID, *stage.reads]))


def ranking(specs: list[str], matrix: list[list[int | None]], sub_questions: int = 2) -> list[dict[str, Any]]:
    stage = Select(SelectConfig(selectors=tuple(specs)), Scale.rating)
    table, _ = call(stage, batch(stage, matrix, sub_questions), Engines())
    rankings: list[dict[str, Any]] = table["rankings"].to_pylist()[0]
    return rankings


def test_one_ranking_per_selector_under_its_canonical_name() -> None:
    matrix: list[list[int | None]] = [[5, 0], [4, 4], [0, 5]]
    by_sum, greedy = ranking(["sum(tau=1)", "greedy-coverage( tau = 4 )"], matrix)
    assert by_sum["doc_ids"] == ["d1", "d0", "d2"]
    assert greedy["selector"] == "greedy-coverage(tau=4)"
    assert greedy["doc_ids"][0] == "d1"
    assert greedy["covers"][0] == ["s0", "s1"]
    assert greedy["uncovered"] == []


def test_unjudged_cells_count_as_zero_and_uncovered_sub_questions_are_named() -> None:
    only = ranking(["greedy-coverage(tau=3)"], [[None, None], [3, None]])[0]
    assert only["doc_ids"] == ["d1", "d0"]
    assert only["uncovered"] == ["s1"]


def test_without_sub_questions_the_first_stage_stays() -> None:
    assert ranking(["sum(tau=1)"], [[], [], []], 0)[0]["doc_ids"] == ["d0", "d1", "d2"]


def test_a_bad_spec_is_refused_with_the_config() -> None:
    with pytest.raises(ValidationError, match="greedy-coverage"):
        SelectConfig(selectors=("greedy-coverge(tau=3)",))
