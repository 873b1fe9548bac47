"""What kills an engine is found by itself, and set aside; who was in the engine beside it gets its results."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from lancer.engines.protocols import Sampling
from lancer.errors import CallFailed, EngineDied, EngineError, StorageError
from lancer.pipeline.isolate import ENGINE_ERROR, POISON, UNFORESEEN, call_isolating, call_one_by_one
from lancer.prompts.reading import read_rating
from lancer.stages.base import Stage, StageOutput
from lancer.stages.decompose import Decompose, DecomposeConfig
from lancer.stages.estimate import Estimate, EstimateConfig
from lancer.stages.judge import Judge, JudgeConfig
from lancer.stages.records import QUERY_REASONS
from lancer.stages.retrieve import Retrieve, RetrieveConfig
from tests.scripted import Engines, ScriptedScorer, ScriptedText
from tests.stages.batches import requests, with_matrix_inputs

TEXTS = {"a": "of stone", "b": "of fire", "c": "of wood"}
ROWS = [
    {"query_id": "q1", "candidates": ["a", "c"], "sub_questions": ["one?", "two?"]},
    {"query_id": "q2", "candidates": ["b", "c"], "sub_questions": ["one?"]},
    {"query_id": "q3", "candidates": ["c"], "sub_questions": ["one?"]},
]


class Fuse:
    """Dies on texts that hold a word, the first `times` times."""

    def __init__(self, word: str, times: int) -> None:
        self.word, self.left, self.deaths = word, times, 0

    def __call__(self, text: str) -> None:
        if self.word in text and self.left:
            self.left, self.deaths = self.left - 1, self.deaths + 1
            raise EngineDied(f"engine 'llm' died: death {self.deaths}")


def rating_engines(fuse: Callable[[str], None]) -> Engines:
    def answer(text: str, sampling: Sampling) -> str:
        fuse(text)
        return "4"

    return Engines(text=ScriptedText(answer), texts=TEXTS)


def calls_of(engines: Engines) -> list[tuple[list[str], Sampling, int]]:
    text = engines.text("llm")
    assert isinstance(text, ScriptedText)
    return text.calls


def judged(engines: Engines, alone: Engines | None = None, attempts: int = 2) -> tuple[pa.Table, StageOutput]:
    stage = Judge(JudgeConfig())
    return call_isolating(
        stage, with_matrix_inputs(stage, ROWS), engines, alone=lambda: alone or engines, attempts=attempts
    )


def test_a_query_that_kills_the_engine_each_time_is_set_aside_and_no_other() -> None:
    fuse = Fuse("of fire", times=100)
    columns, output = judged(rating_engines(fuse))
    assert columns["query_id"].to_pylist() == ["q1", "q2", "q3"]
    assert columns["ratings"].to_pylist() == [[[4, 4], [4, 4]], [[None], [None]], [[4]]]
    assert columns["rating_status"].to_pylist()[1] == [["error"], ["error"]]
    poison = [f for f in output.failures if f.reason == POISON]
    assert [(f.query_id, f.stage, f.attempt) for f in poison] == [("q2", "judge", 2)]
    assert "killed it 2 times" in poison[0].detail
    assert len({f.input_digest for f in output.failures}) == 1, "that of q2"
    assert poison[0].input_digest
    assert "death 3" in poison[0].detail, "once among others, twice alone"
    assert {f.query_id for f in output.failures} == {"q2"}
    assert POISON in QUERY_REASONS
    assert sorted(r.query_id for r in output.ledger) == ["q1", "q2", "q3"]


def test_an_engine_that_dies_once_harms_nobody() -> None:
    columns, output = judged(rating_engines(Fuse("of fire", times=1)))
    assert columns["ratings"].to_pylist() == [[[4, 4], [4, 4]], [[4], [4]], [[4]]]
    assert not output.failures


def test_a_query_gets_as_many_attempts_as_allowed() -> None:
    fuse = Fuse("of fire", times=4)
    columns, output = judged(rating_engines(fuse), attempts=4)
    assert fuse.deaths == 4
    assert columns["ratings"].to_pylist()[1] == [[4], [4]]
    assert not output.failures


def test_the_second_try_is_alone_in_the_engine() -> None:
    shared, alone = rating_engines(Fuse("of fire", times=1)), rating_engines(Fuse("nothing", times=0))
    judged(shared, alone)
    asked = [texts for texts, _, _ in calls_of(alone)]
    assert [len(texts) for texts in asked] == [4, 2, 1], "one query per call"


def test_an_engine_that_stays_dead_ends_the_run() -> None:
    def gone(text: str) -> None:
        raise EngineError("engine 'llm' died more often than limits.engine_restarts")

    with pytest.raises(EngineError, match="more often"):
        judged(rating_engines(gone))


def test_a_pair_that_a_scorer_cannot_score_costs_its_query_alone() -> None:
    def score(document: str, sub_question: str) -> float:
        if "of fire" in document:
            raise CallFailed("no memory for one pair of 512 tokens")
        return 0.5

    stage = Estimate(EstimateConfig())
    engines = Engines(scorer=ScriptedScorer(score), texts=TEXTS)
    batch = with_matrix_inputs(stage, ROWS)
    columns, output = call_isolating(stage, batch, engines, alone=lambda: engines, attempts=2)
    assert columns["probabilities"].to_pylist() == [[[0.5, 0.5], [0.5, 0.5]], [[None], [None]], [[0.5]]]
    failed = [f for f in output.failures if f.reason == ENGINE_ERROR]
    assert [(f.query_id, f.detail) for f in failed] == [("q2", "set aside: no memory for one pair of 512 tokens")]
    assert {f.query_id for f in output.failures} == {"q2"}


def test_what_nobody_foresaw_of_one_query_is_recorded_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str, **options: Any) -> Any:
        if text == "5 of fire":
            raise KeyError("a reader's slip")
        return read_rating(text, **options)

    monkeypatch.setattr("lancer.stages.readouts.read_rating", broken)
    engines = Engines(text=ScriptedText(lambda text, _: "5 of fire" if "of fire" in text else "4"), texts=TEXTS)
    columns, output = judged(engines)
    assert columns["ratings"].to_pylist() == [[[4, 4], [4, 4]], [[None], [None]], [[4]]]
    (failed,) = [f for f in output.failures if f.reason == UNFORESEEN]
    assert failed.query_id == "q2"
    assert re.search(r"KeyError: .a reader's slip. \(lancer/stages/readouts\.py:\d+, in outcomes\)", failed.detail)
    assert {ENGINE_ERROR, UNFORESEEN} <= QUERY_REASONS


def test_a_stage_that_fails_without_any_engine_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*rows: Any) -> Any:
        raise ZeroDivisionError("for every row")

    monkeypatch.setattr(Judge, "_matrix", broken)
    with pytest.raises(ZeroDivisionError, match="for every row"):
        judged(rating_engines(Fuse("nothing", times=0)))


def test_an_error_that_has_nothing_to_do_with_rows_ends_the_run() -> None:
    def gone(text: str) -> None:
        raise StorageError("the object store does not answer")

    with pytest.raises(StorageError):
        judged(rating_engines(gone))


def test_without_a_death_everything_is_one_call() -> None:
    engines = rating_engines(Fuse("nothing", times=0))
    columns, _ = judged(engines)
    assert columns.num_rows == 3
    assert len(calls_of(engines)) == 1


def test_a_request_that_kills_decomposition_has_no_sub_questions() -> None:
    fuse = Fuse("about fire", times=100)

    def answer(text: str, sampling: Sampling) -> str:
        fuse(text)
        return "1. How tall is it?\n2. Who built it?"

    stage = Decompose(DecomposeConfig())
    batch = pa.concat_tables([requests("q1"), requests("q2", text="about fire")])
    engines = Engines(text=ScriptedText(answer))
    columns, output = call_isolating(stage, batch, engines, alone=lambda: engines, attempts=2)
    assert [len(q) for q in columns["sub_questions"].to_pylist()] == [2, 0]
    assert columns["decompose_status"].to_pylist() == ["ok", "failed"]
    reasons = {f.reason for f in output.failures if f.query_id == "q2"}
    assert POISON in reasons
    assert {f.query_id for f in output.failures} == {"q2"}


@pytest.mark.parametrize("kind", ["estimate", "retrieve"])
def test_scorers_and_searchers_can_be_killed_too(kind: str) -> None:
    fuse = Fuse("fire", times=100)

    def score(document: str, sub_question: str) -> float:
        fuse(document)
        return 0.5

    class Search:
        def search(self, queries: list[str], depth: int) -> list[list[object]]:
            for query in queries:
                fuse(query)
            return [[] for _ in queries]

    engines = Engines(scorer=ScriptedScorer(score), texts=TEXTS)
    stage: Stage
    if kind == "estimate":
        stage = Estimate(EstimateConfig())
        batch = with_matrix_inputs(stage, ROWS)
    else:
        stage = Retrieve(RetrieveConfig(source="bm25"))
        batch = pa.concat_tables([requests("q1"), requests("q2", text="about fire")])
        engines.search = lambda name: Search()  # type: ignore[assignment,method-assign,return-value]
    columns, output = call_isolating(stage, batch, engines, alone=lambda: engines, attempts=2)
    assert columns["query_id"].to_pylist() == batch["query_id"].to_pylist()
    assert [f.query_id for f in output.failures if f.reason == POISON] == ["q2"]
    if kind == "estimate":
        assert columns["probabilities"].to_pylist() == [[[0.5, 0.5], [0.5, 0.5]], [[None], [None]], [[0.5]]]


def test_rows_that_may_not_begin_are_set_aside_without_a_call_or_a_look_at_their_texts() -> None:
    engines = rating_engines(Fuse("of fire", times=100))
    stage = Judge(JudgeConfig())
    batch = with_matrix_inputs(stage, ROWS)
    columns, output = call_one_by_one(
        stage, batch, engines, alone=lambda: engines, attempts=2, begin=lambda query_id: query_id != "q2"
    )
    assert columns["query_id"].to_pylist() == ["q1", "q2", "q3"]
    assert columns["ratings"].to_pylist() == [[[4, 4], [4, 4]], [[None], [None]], [[4]]]
    assert columns["rating_status"].to_pylist()[1] == [["error"], ["error"]]
    assert [len(texts) for texts, _, _ in calls_of(engines)] == [4, 1]
    poison = [f for f in output.failures if f.reason == POISON]
    assert [(f.query_id, f.detail) for f in poison] == [("q2", "set aside: by itself, it killed its worker 2 times")]
    assert {f.query_id for f in output.failures} == {"q2"}
