from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from lancer import schema
from lancer.engines.protocols import Generation, Message, Sampling
from lancer.reranking.base import RerankStep
from lancer.reranking.bi_encoder import BiEncoderRerank
from lancer.reranking.graded import GradedRerank
from lancer.reranking.listwise import ListwiseRerank
from lancer.reranking.pointwise import PointwiseRerank
from lancer.stages.base import StageOutput, call
from lancer.stages.rerank import Rerank
from tests.reranking.conversations import by_number
from tests.scripted import Engines, ScriptedScorer, ScriptedText

TEXTS = {f"d{i}": str(i) for i in range(40)}


def batch(stage: Rerank, queries: dict[str, list[str]], **columns: list[Any]) -> pa.Table:
    """Queries with their candidates (a leading "-" = no text), and the columns of other orders."""
    rows = [
        {
            "query_id": query_id,
            "text": f"what of {query_id}?",
            "candidates": [
                {"doc_id": d.lstrip("-"), "score": float(-i), "has_text": not d.startswith("-")}
                for i, d in enumerate(candidates)
            ],
            **{name.replace("__", "."): values[i] for name, values in columns.items()},
        }
        for i, (query_id, candidates) in enumerate(queries.items())
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema([schema.QUERY_ID, *stage.reads]))


def orders(
    step: RerankStep, queries: dict[str, list[str]], engines: Engines, before: RerankStep | None = None, **columns: Any
) -> tuple[list[dict[str, Any]], StageOutput]:
    stage = Rerank(step, before)
    table, output = call(stage, batch(stage, queries, **columns), engines)
    assert stage.name == f"rerank.{step.order_name}"
    found: list[dict[str, Any]] = table[f"order.{step.order_name}"].to_pylist()
    return found, output


def scorer(score_of: Callable[[str, str], float]) -> Engines:
    return Engines(scorer=ScriptedScorer(score_of), texts=TEXTS)


def model(answer: Callable[[str, Sampling], str | Generation]) -> tuple[Engines, ScriptedText]:
    engine = ScriptedText(answer)
    return Engines(text=engine, texts=TEXTS), engine


def high_first(prompt: str, sampling: Sampling) -> str:
    documents = re.findall(r"<document \d+>\n(\d+)\n", prompt)
    return " > ".join(f"[{i + 1}]" for i in by_number(documents))


def test_a_scorer_orders_the_first_and_the_rest_follows() -> None:
    queries = {"q": ["d1", "d3", "-d9", "d2", "d7", "d8"]}
    engines = scorer(lambda document, query: int(document) / 10)
    ((order,), output) = orders(BiEncoderRerank(engine="e", depth=4, keep=5), queries, engines)
    assert order["doc_ids"] == ["d3", "d2", "d1", "d9", "d7", "d8"]
    assert [None if s is None else round(s, 6) for s in order["scores"]] == [0.3, 0.2, 0.1, None, None, None]
    assert order["kept"] == 5
    (record,) = output.ledger
    assert (record.query_id, record.stage, record.engine, record.pairs, record.calls) == (
        "q", "rerank.bi-encoder", "e", 3, 1,
    )  # fmt: skip


def test_a_threshold_keeps_what_reaches_it() -> None:
    queries = {"q": ["d1", "d3", "d2", "-d9"], "none": ["d1"], "empty": []}
    engines = scorer(lambda document, query: int(document) / 10)
    found, _ = orders(BiEncoderRerank(engine="e", threshold=0.15), queries, engines)
    assert [order["kept"] for order in found] == [2, 0, 0]
    assert [order["doc_ids"] for order in found] == [["d3", "d2", "d1", "d9"], ["d1"], []]


def test_a_failed_pair_is_a_failure_and_a_query_without_any_score_has_failed() -> None:
    queries = {"some": ["d1", "d3"], "all": ["d1"]}
    engines = scorer(lambda document, query: float("nan") if document == "1" else 0.5)
    found, output = orders(BiEncoderRerank(engine="e", name="first"), queries, engines)
    assert found[0]["doc_ids"] == ["d3", "d1"]
    assert [(f.query_id, f.stage, f.reason) for f in output.failures] == [
        ("some", "rerank.first", "call_error"),
        ("all", "rerank.first", "engine_error"),
    ]
    assert output.failures[0].detail == "1 of 2 pairs: no number"


def test_a_later_step_sees_what_the_one_before_kept() -> None:
    before = {"doc_ids": ["d5", "d2", "d9", "d4"], "scores": [None] * 4, "kept": 3, "raw": []}
    engines, engine = model(high_first)
    step, first = ListwiseRerank(engine="llm", keep=2), BiEncoderRerank(engine="e", name="first", keep=3)
    (order,), _ = orders(step, {"q": ["d9", "d2", "d4", "d5"]}, engines, first, order__first=[before])
    assert order["doc_ids"] == ["d9", "d5", "d2", "d4"]
    assert order["kept"] == 2
    assert order["raw"] == ["[3] > [1] > [2]"]
    assert len(engine.calls) == 1


def test_windows_of_several_queries_are_asked_together() -> None:
    queries = {"a": [f"d{i}" for i in range(35)], "b": [f"d{i}" for i in range(15)], "c": [f"d{i}" for i in range(25)]}
    engines, engine = model(high_first)
    found, output = orders(ListwiseRerank(engine="llm"), queries, engines)
    assert [len(prompts) for prompts, _, _ in engine.calls] == [3, 2, 1]
    assert [order["doc_ids"][0] for order in found] == ["d34", "d14", "d24"]
    assert [(r.query_id, r.calls, r.attempt) for r in output.ledger] == [("a", 3, 1), ("b", 1, 1), ("c", 2, 1)]


def test_each_prompt_says_which_of_the_calls_about_its_query_it_is() -> None:
    marks: list[tuple[str, int]] = []

    class Marks(ScriptedText):
        def generate(
            self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
        ) -> list[Generation]:
            marks.extend(prompt[-1]["call"] for prompt in prompts)
            return super().generate(prompts, sampling, priority=priority)

    queries = {"a": [f"d{i}" for i in range(35)], "b": [f"d{i}" for i in range(15)]}
    orders(ListwiseRerank(engine="llm"), queries, Engines(text=Marks(high_first), texts=TEXTS))
    assert marks == [("a", 0), ("b", 0), ("a", 1), ("a", 2)]


def test_malformed_answers_are_counted_in_one_failure_per_query() -> None:
    engines, _ = model(lambda prompt, sampling: "[2] > [2] > [30]")
    (order,), output = orders(ListwiseRerank(engine="llm"), {"q": ["d1", "d2", "d3"]}, engines)
    assert order["doc_ids"] == ["d2", "d1", "d3"]
    assert [(f.reason, f.detail) for f in output.failures] == [
        ("malformed", "document numbers in 1 answers: missing 2, repeated 1, unknown 1")
    ]


def test_calls_that_fail_are_named() -> None:
    def half(prompt: str, sampling: Sampling) -> str | Generation:
        return Generation(text="", error="prompt too long", finish="error") if "\n1\n" in prompt else "3"

    engines, _ = model(half)
    (order, lost), output = orders(GradedRerank(engine="llm"), {"q": ["d1", "d2"], "lost": ["d1"]}, engines)
    assert order["doc_ids"] == ["d2", "d1"]
    assert order["scores"] == [3.0, None]
    assert lost["doc_ids"] == ["d1"]
    assert [(f.query_id, f.reason, f.detail) for f in output.failures] == [
        ("q", "call_error", "1 of 2 calls: prompt too long"),
        ("lost", "engine_error", "1 of 1 calls: prompt too long"),
    ]


def test_documents_that_were_not_shown_whole_are_counted() -> None:
    engine = ScriptedText(lambda prompt, sampling: "3")
    engines = Engines(text=engine, texts={"d1": "one two three", "d2": "one"})
    _, output = orders(GradedRerank(engine="llm", max_words=2), {"q": ["d1", "d2"]}, engines)
    assert [record.cut_inputs for record in output.ledger] == [1]
    assert "one two\n" in engine.calls[0][0][0]


def test_pointwise_calls_are_pairs_and_go_out_at_once() -> None:
    engines, engine = model(lambda prompt, sampling: Generation(text="Yes", logprobs=(-0.1, -3.0), prompt_tokens=5))
    queries = {"a": ["d1", "d2"], "b": ["d3"]}
    found, output = orders(PointwiseRerank(engine="llm", threshold=0.9), queries, engines)
    assert [len(prompts) for prompts, _, _ in engine.calls] == [3]
    assert [(r.query_id, r.pairs, r.prompt_tokens) for r in output.ledger] == [("a", 2, 10), ("b", 1, 5)]
    assert [order["kept"] for order in found] == [2, 1]


def test_the_query_is_made_of_the_fields_that_the_step_names() -> None:
    seen: list[str] = []

    def note(document: str, query: str) -> float:
        seen.append(query)
        return 0.5

    step = BiEncoderRerank(engine="e", query=("title", "text", "background"))
    stage = Rerank(step)
    row = {
        "query_id": "q",
        "title": "Lakes",
        "text": "how deep?",
        "background": None,
        "candidates": [{"doc_id": "d1", "score": 0.0, "has_text": True}],
    }
    call(stage, pa.Table.from_pylist([row], schema=pa.schema([schema.QUERY_ID, *stage.reads])), scorer(note))
    assert seen == ["Lakes how deep?"]
