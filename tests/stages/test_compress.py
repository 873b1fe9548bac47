"""What stays of the documents that were chosen."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancer import schema
from lancer.engines.protocols import Generation, Sampling
from lancer.stages.base import StageOutput, call
from lancer.stages.compress import Compress, CompressConfig
from lancer.text.sentences import sentence_spans
from tests.scripted import Engines, ScriptedScorer, ScriptedText

TEXTS = {
    "d1": "Of dams\nThe dam is high. It rains. The dam holds water.  The dam is old. The end.",
    "d2": "Nothing here. Nor here.",
    "d3": "A dam.",
}
SCORES = {
    "Of dams": 0.4,
    "The dam is high.": 0.9,
    "It rains.": 0.39,
    "The dam holds water.": 0.5,
    "The dam is old.": 0.6,
}


def batch(stage: Compress, *orders: list[str], questions: tuple[str, ...] = (), kept: int = 9) -> pa.Table:
    rows = [
        {
            "query_id": f"q{i}",
            "text": "about dams",
            "candidates": [{"doc_id": d, "score": 0.0, "has_text": True} for d in sorted(doc_ids)],
            "sub_questions": [{"id": str(j), "text": q} for j, q in enumerate(questions, start=1)],
            "order.mmr": {"doc_ids": ["d2", "d3", "d1"], "scores": [], "kept": kept, "raw": []},
            "rankings": [
                {"selector": s, "doc_ids": d, "covers": [[] for _ in d], "uncovered": []}
                for s, d in (("max", doc_ids), ("sum(tau=0)", doc_ids[::-1]))
            ],
        }
        for i, doc_ids in enumerate(orders)
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema([schema.QUERY_ID, *stage.reads]))


def stage_of(*, selected: bool = True, order: str | None = None, **settings: Any) -> Compress:
    return Compress(CompressConfig(**settings), selected=selected, order=order)


def compressed(stage: Compress, table: pa.Table, engines: Engines) -> tuple[list[list[dict[str, Any]]], StageOutput]:
    columns, output = call(stage, table, engines)
    return columns["compressed"].to_pylist(), output


def scorer(scores: dict[str, float] = SCORES) -> Engines:
    return Engines(scorer=ScriptedScorer(lambda sentence, question: scores.get(sentence, 0.0)), texts=TEXTS)


def test_the_best_sentences_stay_in_their_order_with_their_places() -> None:
    stage = stage_of()
    ((first, second),), output = compressed(stage, batch(stage, ["d1", "d2"]), scorer())
    assert (first["doc_id"], first["status"]) == ("d1", "ok")
    assert first["text"] == "The dam is high. The dam holds water. The dam is old."
    cut = [(TEXTS["d1"][s["start"] : s["end"]], round(s["score"], 2)) for s in first["spans"]]
    assert cut == [("The dam is high.", 0.9), ("The dam holds water.", 0.5), ("The dam is old.", 0.6)]
    assert first["characters"] == len(TEXTS["d1"])
    assert (second["status"], second["text"], second["spans"]) == ("nothing", "", [])
    assert [(r.query_id, r.calls, r.pairs) for r in output.ledger] == [("q0", 1, 8)]
    assert not output.failures


def test_only_the_top_is_compressed_of_the_first_selector_or_the_first_stage() -> None:
    stage = stage_of(depth=2)
    ((*chosen,),), _ = compressed(stage, batch(stage, ["d3", "d2", "d1"]), scorer())
    assert [d["doc_id"] for d in chosen] == ["d3", "d2"]
    stage = stage_of(selected=False, depth=2)
    ((*chosen,),), _ = compressed(stage, batch(stage, ["d3", "d2", "d1"]), scorer())
    assert [d["doc_id"] for d in chosen] == ["d1", "d2"]


@pytest.mark.parametrize(("selected", "chosen"), [(True, ["d3", "d2"]), (False, ["d2", "d3"])])
def test_what_reranking_did_not_keep_is_not_compressed(selected: bool, chosen: list[str]) -> None:
    stage = stage_of(selected=selected, order="mmr")
    ((*found,),), _ = compressed(stage, batch(stage, ["d3", "d2", "d1"], kept=2), scorer())
    assert [d["doc_id"] for d in found] == chosen


@pytest.mark.parametrize(
    ("questions", "seen"),
    [("request", ["about dams"]), ("sub_questions", ["a?", "b?"]), ("both", ["about dams", "a?", "b?"])],
)
def test_a_sentence_is_as_good_as_its_best_question(questions: str, seen: list[str]) -> None:
    asked: set[str] = set()

    def score(sentence: str, question: str) -> float:
        asked.add(question)
        return 0.9 if (sentence, question) == ("A dam.", seen[-1]) else 0.0

    stage = stage_of(questions=questions)
    engines = Engines(scorer=ScriptedScorer(score), texts=TEXTS)
    ((found,),), _ = compressed(stage, batch(stage, ["d3"], questions=("a?", "b?")), engines)
    assert asked == set(seen)
    assert found["status"] == "ok"


def test_without_sub_questions_the_request_counts() -> None:
    stage = stage_of(questions="sub_questions")
    engines = Engines(scorer=ScriptedScorer(lambda s, q: float(q == "about dams")), texts=TEXTS)
    ((found,),), _ = compressed(stage, batch(stage, ["d3"]), engines)
    assert found["text"] == "A dam."


def test_a_document_with_a_score_that_is_no_number_stays_whole() -> None:
    stage = stage_of()
    scores = SCORES | {"It rains.": math.nan}
    ((first, second, third),), output = compressed(stage, batch(stage, ["d1", "d3", "gone"]), scorer(scores))
    assert (first["status"], len(first["spans"])) == ("error", 6)
    assert {s["score"] for s in first["spans"]} == {None}
    assert second["status"] == "nothing"
    assert (third["status"], third["spans"], third["characters"]) == ("no_text", [], 0)
    assert [(f.reason, f.detail) for f in output.failures] == [
        ("error", "1 of 3 documents, kept whole: the scorer gave no number")
    ]


def test_an_llm_names_sentences_and_what_it_says_wrongly_is_dropped_or_asked_again() -> None:
    def answer(prompt: str, sampling: Sampling) -> str | Generation:
        if "A dam." in prompt:
            return Generation(text="", error="the prompt is too long")
        if "Nor here" in prompt:
            return "I like it" if sampling.seed == 0 else "[]"
        return "[4, 2, 17]"

    stage, text = stage_of(method="llm"), ScriptedText(answer)
    ((first, second, third),), output = compressed(
        stage, batch(stage, ["d1", "d2", "d3"]), Engines(text=text, texts=TEXTS)
    )
    assert (first["status"], first["text"]) == ("ok", "The dam is high. The dam holds water.")
    assert {s["score"] for s in first["spans"]} == {None}
    assert first["raw"] == "[4, 2, 17]"
    assert (second["status"], second["text"], second["raw"]) == ("nothing", "", "[]")
    assert (third["status"], third["text"], third["raw"]) == ("error", "A dam.", "")
    assert [len(prompts) for prompts, _, _ in text.calls] == [3, 1], "what failed is not asked again"
    assert [(r.attempt, r.calls) for r in output.ledger] == [(1, 3), (2, 1)]
    assert [(f.reason, f.detail) for f in output.failures] == [
        ("error", "1 of 3 documents, kept whole: e.g. the prompt is too long"),
        ("unknown_sentence", "numbers that no sentence has, dropped: 1"),
    ]


def test_what_stays_unreadable_stays_whole_and_is_counted() -> None:
    stage = stage_of(method="llm", attempts=3)
    text = ScriptedText(lambda prompt, sampling: "Sentence one.")
    ((found, _),), output = compressed(stage, batch(stage, ["d2", "d3"]), Engines(text=text, texts=TEXTS))
    assert (found["status"], found["text"]) == ("unreadable", TEXTS["d2"])
    assert len(text.calls) == 3
    assert [(f.reason, f.attempt, f.detail) for f in output.failures] == [
        ("unreadable", 3, "2 of 2 documents, kept whole: no_number 2")
    ]


def test_a_query_whose_every_call_fails_counts_as_failed() -> None:
    stage = stage_of(method="llm")
    text = ScriptedText(lambda prompt, sampling: Generation(text="", error="it is down"))
    _, output = compressed(stage, batch(stage, ["d1", "gone"], []), Engines(text=text, texts=TEXTS))
    assert [(f.query_id, f.reason, f.attempt) for f in output.failures] == [("q0", "engine_error", 1)]


def test_only_the_settings_of_the_method_are_part_of_its_identity() -> None:
    plain = stage_of().identity()
    assert stage_of(max_tokens=9, engine="other").identity() == plain
    assert stage_of(threshold=0.5).identity() != plain
    assert stage_of(questions="both").identity() != plain
    assert stage_of(selected=False).identity() != plain
    extraction = stage_of(method="llm").identity()
    assert stage_of(method="llm", sentences=9).identity() == extraction
    assert stage_of(method="llm", structured=False).identity() != extraction
    assert CompressConfig(method="llm").engine == "llm"
    assert CompressConfig().engine == "scorer"


@given(
    st.lists(st.sampled_from(["The dam is high.", "It rains", "\n", " ", "Dr. A", "?!", "\u3000"]), max_size=12),
    st.randoms(use_true_random=False),
    st.sampled_from(["similarity", "llm"]),
)
def test_spans_are_sorted_disjoint_whole_sentences_inside_the_text(pieces: list[str], random: Any, method: str) -> None:
    text = "".join(pieces)
    numbers = [random.randint(0, 9) for _ in range(4)]
    scores = [random.random() for _ in range(99)]
    engines = Engines(
        scorer=ScriptedScorer(lambda s, q: scores[len(s)]),
        text=ScriptedText(lambda prompt, sampling: str(numbers)),
        texts={"d": text},
    )
    stage = stage_of(method=method)
    ((found,),), _ = compressed(stage, batch(stage, ["d"]), engines)
    spans = [(s["start"], s["end"]) for s in found["spans"]]
    assert set(spans) <= set(map(tuple, sentence_spans(text)))
    assert spans == sorted(set(spans))
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert found["text"] == " ".join(text[start:end] for start, end in spans)
    again = compressed(stage, batch(stage, ["d"]), engines)[0]
    assert again == [[found]]
