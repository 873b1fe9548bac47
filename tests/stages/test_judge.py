from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lancer.engines.protocols import Generation, Sampling
from lancer.errors import InputError, UsageError
from lancer.schema import Scale
from lancer.stages.base import call
from lancer.stages.judge import Judge, JudgeConfig, make_judge
from lancer.storage import Storage
from tests.calibrations import write
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


def test_a_failure_names_the_last_attempt_that_was_made() -> None:
    stage, text = Judge(JudgeConfig(attempts=3)), ScriptedText(lambda p, s: Generation(text="", error="it is down"))
    _, output = call(stage, with_matrix_inputs(stage, ROWS[:1]), Engines(text=text, texts=TEXTS))
    assert [(f.reason, f.attempt) for f in output.failures] == [("error", 1)], "a call that failed is not made again"
    assert [r.attempt for r in output.ledger] == [1]


def test_the_published_layout_asks_before_it_shows_the_document() -> None:
    stage, text = Judge(JudgeConfig(layout="published")), ScriptedText(answer)
    call(stage, with_matrix_inputs(stage, ROWS[1:2]), Engines(text=text, texts=TEXTS))
    shown = text.calls[0][0][0]
    assert shown.index("third?") < shown.index("text two")
    assert stage.identity() != Judge(JudgeConfig()).identity()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"readout": "expected", "layout": "per-document"}, "asks for all: choose readout 'digit', or layout"),
        ({"readout": "likelihood", "layout": "per-document"}, "asks for all"),
        ({"readout": "expected", "structured": False}, "`structured` is about readout 'digit'"),
        ({"readout": "likelihood", "max_tokens": 3}, "`max_tokens` is about readout 'digit'"),
        ({"readout": "expected", "temperature": 0.5}, "`temperature` is about readout 'digit'"),
        ({"layout": "published", "pad_to_blocks": True}, "`pad_to_blocks` needs layout 'shared-prefix'"),
        ({"layout": "per-document", "pad_to_blocks": True}, "`pad_to_blocks` needs"),
        ({"max_document_tokens": 3}, "greater than or equal to 16"),
    ],
)
def test_combinations_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        JudgeConfig(**settings)


SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"layout": "published"},
    {"layout": "per-document"},
    {"readout": "expected"},
    {"readout": "likelihood"},
    {"structured": False},
    {"pad_to_blocks": False},
    {"long_documents": "windows"},
    {"max_document_tokens": 200},
    {"with_request": False},
)


def test_every_setting_that_changes_values_is_in_the_identity() -> None:
    identities = [str(Judge(JudgeConfig(**s)).identity()) for s in SETTINGS]
    assert len(set(identities)) == len(SETTINGS)
    assert Judge(JudgeConfig(pad_to_blocks=True)).identity() == Judge(JudgeConfig()).identity()


def test_per_document_rates_all_sub_questions_in_one_call() -> None:
    def rate(prompt: str, sampling: Sampling) -> str:
        return '{"1": 4, "2": 1}' if "text one" in prompt else '{"2": 3}'

    stage, text = Judge(JudgeConfig(layout="per-document", attempts=1)), ScriptedText(rate)
    table, output = call(stage, with_matrix_inputs(stage, ROWS[:1]), Engines(text=text, texts=TEXTS))
    assert table["ratings"].to_pylist() == [[[4, 1], [None, None], [None, 3]]]
    assert table["rating_status"].to_pylist()[0][2] == ["unreadable", "ok"]
    assert table["rating_raw"].to_pylist()[0][0] == ['{"1": 4, "2": 1}'] * 2
    assert [(r.calls, r.pairs) for r in output.ledger] == [(2, 4)]
    assert output.failures[0].detail == "1 of 6 cells: missing 1"


def test_a_likelihood_is_a_probability_with_its_number_as_raw_output() -> None:
    def nats(prompt: str, sampling: Sampling) -> Generation:
        shown = "text one" in prompt or "text two" in prompt
        return Generation(text="", logprobs=(-2.0 + (math.log(3) if shown else 0.0),) * 2)

    stage, text = Judge(JudgeConfig(readout="likelihood")), ScriptedText(nats)
    assert stage.scale is Scale.probability
    table, output = call(stage, with_matrix_inputs(stage, ROWS[:1]), Engines(text=text, texts=TEXTS))
    probabilities = table["probabilities"].to_pylist()[0]
    assert probabilities[0] == [pytest.approx(0.75)] * 2
    assert probabilities[1] == [None, None]
    assert table["probability_raw"].to_pylist()[0][:2] == [["1.09861", "1.09861"], ["", ""]]
    assert table["probability_status"].to_pylist()[0] == [["ok", "ok"], ["no_text", "no_text"], ["ok", "ok"]]
    assert [(r.calls, r.pairs) for r in output.ledger] == [(6, 4)]


def test_an_expected_rating_is_a_fraction_and_an_unreadable_one_is_asked_again() -> None:
    def weigh(prompt: str, sampling: Sampling) -> Generation:
        mass = 0.8 if "single character" in prompt else 0.001
        return Generation(text="A", logprobs=(*(-math.inf,) * 4, math.log(mass / 2), math.log(mass / 2)))

    stage, text = Judge(JudgeConfig(readout="expected")), ScriptedText(weigh)
    table, output = call(stage, with_matrix_inputs(stage, ROWS[1:2]), Engines(text=text, texts=TEXTS))
    assert table["ratings"].to_pylist() == [[[4.5]]]
    assert table["rating_raw"].to_pylist() == [[["4.5000 outside 0.2000"]]]
    assert [(r.attempt, r.calls) for r in output.ledger] == [(1, 1), (2, 1)]


PROMPT = "{rubric}\n{request}\n<document>\n{document}\n</document>\nIs {sub_question} answered?\nRating:"


def test_a_prompt_file_replaces_the_text_of_the_layout(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text(PROMPT)
    stage = make_judge(JudgeConfig(prompt=str(tmp_path / "prompt.txt")), Storage())
    text = ScriptedText(answer)
    call(stage, with_matrix_inputs(stage, ROWS[1:2]), Engines(text=text, texts=TEXTS))
    assert text.calls[0][0][0].endswith("<document>\ntext two\n</document>\nIs third? answered?\nRating:")
    before = stage.identity()
    assert before != Judge(JudgeConfig()).identity()
    (tmp_path / "copy.txt").write_text(PROMPT)
    assert make_judge(JudgeConfig(prompt=str(tmp_path / "copy.txt")), Storage()).identity() == before


def test_a_prompt_file_keeps_the_order_of_its_layout(tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text(PROMPT)
    with pytest.raises(UsageError, match=r"prompt.txt: layout 'published' needs \{sub_question\} before \{document\}"):
        make_judge(JudgeConfig(prompt=str(path), layout="published"), Storage())
    path.write_text("{sub_question}\n{document}")
    with pytest.raises(UsageError, match=r"'shared-prefix' needs \{document\} before \{sub_question\}"):
        make_judge(JudgeConfig(prompt=str(path)), Storage())
    path.write_text("{documents}\n{sub_question}")
    with pytest.raises(UsageError, match=r"prompt.txt:1: unknown place '\{documents\}'; did you mean 'document'"):
        make_judge(JudgeConfig(prompt=str(path)), Storage())
    with pytest.raises(InputError, match="absent"):
        make_judge(JudgeConfig(prompt=str(tmp_path / "absent.txt")), Storage())


def test_a_calibration_changes_values_and_scale_but_not_the_raw_output(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", from_scale="rating", scale="probability", knots=((0, 0.1), (4, 0.5), (5, 1.0)))
    stage, text = make_judge(JudgeConfig(calibration=path), Storage()), ScriptedText(answer)
    assert stage.scale is Scale.probability
    table, _ = call(stage, with_matrix_inputs(stage, ROWS[1:2]), Engines(text=text, texts=TEXTS))
    assert table["probabilities"].to_pylist() == [[[pytest.approx(0.3)]]]
    assert table["probability_raw"].to_pylist() == [[["2"]]]
    assert stage.identity()["calibration"] not in (None, Judge(JudgeConfig()).identity()["calibration"])


def test_a_calibration_begins_in_the_scale_of_the_readout(tmp_path: Path) -> None:
    path = write(tmp_path / "c.json", from_scale="probability", knots=((0, 0), (1, 1)))
    with pytest.raises(InputError, match=r"c.json: maps values of scale probability, here they are rating"):
        make_judge(JudgeConfig(calibration=path), Storage())


def test_what_is_cut_of_a_document_is_recorded() -> None:
    from tests.stages.test_room import DOCUMENT, chat_tokens

    stage, text = Judge(JudgeConfig(max_document_tokens=50)), ScriptedText(answer)
    rows = [{"query_id": "a", "candidates": ["d1", "-d9", "long"], "sub_questions": ["first?"]}]
    engines = Engines(text=text, texts=TEXTS | {"long": DOCUMENT}, tokens=chat_tokens(), context=8192)
    table, _ = call(stage, with_matrix_inputs(stage, rows), engines)
    whole, without, cut = table["cut_characters"].to_pylist()[0]
    assert (whole, without) == (0, None)
    assert cut > 1000
    assert table["rating_status"].to_pylist() == [[["ok"], ["no_text"], ["ok"]]]
