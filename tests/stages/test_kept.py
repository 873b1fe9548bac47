from __future__ import annotations

from typing import Any

import pyarrow as pa

from lancer import schema
from lancer.stages.base import call
from lancer.stages.estimate import Estimate, EstimateConfig
from lancer.stages.judge import Judge, JudgeConfig
from lancer.stages.kept import OfKept
from tests.scripted import Engines, ScriptedScorer, ScriptedText
from tests.stages.batches import with_matrix_inputs

TEXTS = {"a": "a", "b": "b", "c": "c", "d": "d"}


def batch(stage: OfKept, orders: list[dict[str, Any]]) -> pa.Table:
    inner = [f for f in stage.reads if not f.name.startswith("order.")]
    rows = [
        {"query_id": f"q{i}", "candidates": ["a", "-b", "c", "d"], "sub_questions": ["one?", "two?"]}
        for i in range(len(orders))
    ]

    class Inner:
        reads = tuple(inner)

    table = with_matrix_inputs(Inner(), rows)  # type: ignore[arg-type]
    column = [{"scores": [None] * 4, "raw": []} | order for order in orders]
    return table.append_column(stage.reads[-1], pa.array(column, schema.ORDER))


def test_only_kept_candidates_are_judged_and_the_matrix_has_all() -> None:
    engine = ScriptedText(lambda prompt, sampling: "4")
    stage = OfKept(Judge(JudgeConfig()), "first")
    orders = [{"doc_ids": ["d", "b", "a", "c"], "kept": 2}, {"doc_ids": ["c", "d", "a", "b"], "kept": 0}]
    table, output = call(stage, batch(stage, orders), Engines(text=engine, texts=TEXTS))
    assert sum(len(prompts) for prompts, _, _ in engine.calls) == 2
    no, lost, yes = [None, None], ["not_kept"] * 2, [4.0, 4.0]
    assert table["ratings"].to_pylist() == [[no, no, no, yes], [no] * 4]
    assert table["rating_status"].to_pylist() == [[lost, ["no_text"] * 2, lost, ["ok"] * 2], [lost] * 4]
    assert table["rating_raw"].to_pylist()[0] == [["", ""], ["", ""], ["", ""], ["4", "4"]]
    assert [record.pairs for record in output.ledger] == [2, 0]


def test_an_estimator_too() -> None:
    stage = OfKept(Estimate(EstimateConfig()), "first")
    scorer = ScriptedScorer(lambda document, question: 0.5 if document == "c" else 0.25)
    orders = [{"doc_ids": ["c", "a", "b", "d"], "kept": 2}]
    table, _ = call(stage, batch(stage, orders), Engines(scorer=scorer, texts=TEXTS))
    assert table["probabilities"].to_pylist() == [[[0.25] * 2, [None] * 2, [0.5] * 2, [None] * 2]]
    assert stage.identity() == Estimate(EstimateConfig()).identity()
    assert (stage.name, stage.engines) == ("estimate", ("scorer",))
