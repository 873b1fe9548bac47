from __future__ import annotations

import math

import pytest

from lancer.stages.base import call
from lancer.stages.estimate import Estimate, EstimateConfig
from tests.scripted import Engines, ScriptedScorer
from tests.stages.batches import with_matrix_inputs

TEXTS = {"d1": "one", "d2": "two"}


def test_scores_fill_the_matrix_and_nan_is_no_number() -> None:
    scores = {("one", "a?"): 0.25, ("one", "b?"): math.nan, ("two", "a?"): 0.5, ("two", "b?"): 1.0}
    stage = Estimate(EstimateConfig())
    rows = [
        {"query_id": "q", "candidates": ["d1", "-d9", "d2"], "sub_questions": ["a?", "b?"]},
        {"query_id": "r", "candidates": [], "sub_questions": []},
    ]
    engines = Engines(scorer=ScriptedScorer(lambda d, s: scores[d, s]), texts=TEXTS)
    table, output = call(stage, with_matrix_inputs(stage, rows), engines)
    assert table["probabilities"].to_pylist() == [[[0.25, None], [None, None], [0.5, 1.0]], []]
    assert table["probability_status"].to_pylist()[0] == [["ok", "error"], ["no_text", "no_text"], ["ok", "ok"]]
    assert [(r.query_id, r.pairs, r.prompt_tokens) for r in output.ledger] == [("q", 4, 7), ("r", 0, 7)]
    assert [(f.query_id, f.reason) for f in output.failures] == [("q", "error")]


@pytest.mark.parametrize(("with_request", "seen"), [(False, "a?"), (True, "about towers a?")])
def test_the_request_may_stand_before_the_sub_question(with_request: bool, seen: str) -> None:
    asked: list[str] = []
    stage = Estimate(EstimateConfig(with_request=with_request))
    rows = [{"query_id": "q", "candidates": ["d1"], "sub_questions": ["a?"]}]
    engines = Engines(scorer=ScriptedScorer(lambda d, s: asked.append(s) or 0.5), texts=TEXTS)  # type: ignore[func-returns-value]
    call(stage, with_matrix_inputs(stage, rows), engines)
    assert asked == [seen]
