from __future__ import annotations

from lancer.engines.protocols import Generation, Sampling
from lancer.stages.base import call
from lancer.stages.decompose import Decompose, DecomposeConfig
from tests.scripted import Engines, ScriptedText
from tests.stages.batches import requests

A, B, C = "How tall is the tower?", "Who built the tower?", "When was the tower finished?"


def test_enough_sub_questions_take_one_call() -> None:
    text = ScriptedText(lambda prompt, sampling: f"{A}\n{B}\n{C}")
    table, output = call(Decompose(DecomposeConfig(n=2)), requests("q"), Engines(text=text))
    assert table["sub_questions"].to_pylist() == [[{"id": "1", "text": A}, {"id": "2", "text": B}]]
    assert table["decompose_status"].to_pylist() == ["ok"]
    assert table["decompose_raw"].to_pylist() == [[f"{A}\n{B}\n{C}"]]
    assert len(text.calls) == 1
    assert [(r.attempt, r.prompt_tokens, r.cached_tokens) for r in output.ledger] == [(1, 10, 4)]


def test_too_few_are_asked_again_with_another_seed_and_filled_up() -> None:
    answers = {0: f"{A}\n{A}", 1: f"{A}\n{B}"}
    text = ScriptedText(lambda prompt, sampling: answers[sampling.seed])
    table, output = call(Decompose(DecomposeConfig(n=2, temperature=0)), requests("q"), Engines(text=text))
    assert [q["text"] for q in table["sub_questions"].to_pylist()[0]] == [A, B]
    assert [(s.seed, s.temperature) for _, s, _ in text.calls] == [(0, 0.0), (1, 0.7)]
    assert [r.attempt for r in output.ledger] == [1, 2]
    assert not output.failures


def test_only_queries_with_too_few_are_asked_again() -> None:
    def answer(prompt: str, sampling: Sampling) -> str:
        return f"{A}\n{B}" if "bridges" in prompt else A

    table = requests("q1", "q2").set_column(1, "text", [["about bridges", "about towers"]])
    text = ScriptedText(answer)
    result, output = call(Decompose(DecomposeConfig(n=2, attempts=2)), table, Engines(text=text))
    assert [len(prompts) for prompts, _, _ in text.calls] == [2, 1]
    assert result["decompose_status"].to_pylist() == ["ok", "too_few"]
    assert [(f.query_id, f.reason, f.detail) for f in output.failures] == [
        ("q2", "too_few", "1 of 2 sub-questions after 2 attempts")
    ]


def test_no_sub_question_at_all_keeps_the_row() -> None:
    text = ScriptedText(lambda prompt, sampling: "I would rather not.")
    table, _ = call(Decompose(DecomposeConfig(n=2, attempts=2)), requests("q"), Engines(text=text))
    assert table["sub_questions"].to_pylist() == [[]]
    assert table["decompose_status"].to_pylist() == ["failed"]
    assert table["decompose_raw"].to_pylist() == [["I would rather not."] * 2]


def test_an_engine_s_error_is_a_failure_of_the_query_alone() -> None:
    def answer(prompt: str, sampling: Sampling) -> str | Generation:
        return Generation(text="", error="prompt of 9,000 tokens") if "bridges" in prompt else f"{A}\n{B}"

    table = requests("q1", "q2").set_column(1, "text", [["about bridges", "about towers"]])
    result, output = call(Decompose(DecomposeConfig(n=2, attempts=1)), table, Engines(text=ScriptedText(answer)))
    assert result["decompose_status"].to_pylist() == ["failed", "ok"]
    assert [(f.query_id, f.reason, f.detail) for f in output.failures] == [
        ("q1", "engine_error", "prompt of 9,000 tokens")
    ]


def test_given_sub_questions_pass_with_their_ids() -> None:
    given = [{"id": "n7", "text": A}]
    stage = Decompose(DecomposeConfig(source="given", path="s.json"))
    table, output = call(stage, requests("q", given_sub_questions=given), Engines())
    assert table["sub_questions"].to_pylist() == [given]
    assert table["decompose_status"].to_pylist() == ["given"]
    assert stage.engines == ()
    assert not output.failures


def test_a_query_the_file_lacks_stays_and_is_a_failure() -> None:
    stage = Decompose(DecomposeConfig(source="given", path="s.json"))
    table, output = call(stage, requests("q"), Engines())
    assert table["decompose_status"].to_pylist() == ["failed"]
    assert [f.reason for f in output.failures] == ["no_sub_questions"]


def test_the_prompt_enters_the_identity_but_the_path_does_not() -> None:
    given = [Decompose(DecomposeConfig(source="given", path=p)).identity() for p in ("a", "b")]
    assert given[0] == given[1]
    base = Decompose(DecomposeConfig(n=2)).identity()
    assert base != Decompose(DecomposeConfig(n=3)).identity()
    assert base["prompt"] != Decompose(DecomposeConfig(n=3)).identity()["prompt"]
