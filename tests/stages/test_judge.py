from __future__ import annotations

from lancer.engines.protocols import Generation, Sampling
from lancer.stages.base import call
from lancer.stages.judge import Judge, JudgeConfig
from tests.scripted import Engines, ScriptedText
from tests.stages.batches import with_matrix_inputs

TEXTS = {"d1": "text one", "d2": "text two"}
ROWS = [
    {"query_id": "a", "candidates": ["d1", "-d9", "d2"], "sub_questions": ["first?", "second?"]},
    {"query_id": "b", "candidates": ["d2"], "sub_questions": ["third?"]},
    {"query_id": "c", "candidates": [], "sub_questions": ["fourth?"]},
    {"query_id": "d", "candidates": ["d1"], "sub_questions": []},
]


def answer(prompt: str, sampling: Sampling) -> str | Generation:
    if "text two" in prompt and "second?" in prompt:
        return Generation(text="", error="prompt of 9,000 tokens")
    if "text one" in prompt and "second?" in prompt:
        return "no idea"
    return "4" if "text one" in prompt else "2"


def test_every_pair_has_a_cell_and_bad_ones_do_not_move_their_neighbours() -> None:
    stage, text = Judge(JudgeConfig(attempts=1)), ScriptedText(answer)
    table, output = call(stage, with_matrix_inputs(stage, ROWS), Engines(text=text, texts=TEXTS))
    assert table["ratings"].to_pylist() == [[[4, None], [None, None], [2, None]], [[2]], [], [[]]]
    assert table["rating_status"].to_pylist()[0] == [["ok", "unreadable"], ["no_text", "no_text"], ["ok", "error"]]
    assert table["rating_raw"].to_pylist()[0] == [["4", "no idea"], ["", ""], ["2", ""]]
    assert len(text.calls) == 1, "a shard's prompts go out together"
    assert len(text.calls[0][0]) == 5, "a document without text is never scored"
    assert [(r.query_id, r.calls, r.pairs) for r in output.ledger] == [
        ("a", 4, 4),
        ("b", 1, 1),
        ("c", 0, 0),
        ("d", 0, 0),
    ]
    assert [(f.query_id, f.reason, f.detail) for f in output.failures] == [
        ("a", "unreadable", "1 of 6 cells: no_number 1"),
        ("a", "error", "1 of 6 cells: e.g. prompt of 9,000 tokens"),
    ]


def test_prompts_of_a_document_are_neighbours_and_choices_are_the_scale() -> None:
    stage, text = Judge(JudgeConfig()), ScriptedText(answer)
    call(stage, with_matrix_inputs(stage, ROWS[:1]), Engines(text=text, texts=TEXTS))
    prompts, sampling, _ = text.calls[0]
    assert ["text one" in p for p in prompts] == [True, True, False, False]
    assert sampling.choice == ("0", "1", "2", "3", "4", "5")


def test_oracle_sub_questions_stand_alone() -> None:
    stage, text = Judge(JudgeConfig(with_request=False)), ScriptedText(answer)
    call(stage, with_matrix_inputs(stage, ROWS[1:2]), Engines(text=text, texts=TEXTS))
    assert "about towers" not in text.calls[0][0][0]
    assert Judge(JudgeConfig(with_request=False)).identity() != Judge(JudgeConfig()).identity()


def test_what_cannot_be_read_is_asked_again_more_sharply_and_nothing_else_is() -> None:
    def stubborn(prompt: str, sampling: Sampling) -> str | Generation:
        return "Rating: 4" if sampling.seed == 1 else answer(prompt, sampling)

    stage, text = Judge(JudgeConfig(attempts=2, structured=False)), ScriptedText(stubborn)
    table, output = call(stage, with_matrix_inputs(stage, ROWS[:1]), Engines(text=text, texts=TEXTS))
    assert table["ratings"].to_pylist() == [[[4, 4], [None, None], [2, None]]]
    assert table["rating_raw"].to_pylist()[0][0] == ["4", "Rating: 4"]
    first, second = text.calls
    assert len(first[0]) == 4
    assert len(second[0]) == 1, "the call that failed is not made again"
    assert second[0][0].startswith(first[0][1])
    assert [(r.attempt, r.calls) for r in output.ledger] == [(1, 4), (2, 1)]
    assert [f.reason for f in output.failures] == ["error"]


def test_the_published_layout_asks_before_it_shows_the_document() -> None:
    stage, text = Judge(JudgeConfig(layout="published")), ScriptedText(answer)
    call(stage, with_matrix_inputs(stage, ROWS[1:2]), Engines(text=text, texts=TEXTS))
    shown = text.calls[0][0][0]
    assert shown.index("third?") < shown.index("text two")
    assert stage.identity() != Judge(JudgeConfig()).identity()
