from __future__ import annotations

import json
import math

import pytest

from lancer.engines.protocols import Generation
from lancer.schema import Scale
from lancer.stages.readouts import Digit, Expected, Likelihood, Outcome, gain, joined

DIGIT = Digit(per_document=False, structured=True, max_tokens=None, temperature=0.0, seed=7)
PER_DOCUMENT = Digit(per_document=True, structured=True, max_tokens=None, temperature=0.0, seed=0)


def test_a_digit_is_a_choice_and_each_attempt_has_the_next_seed() -> None:
    first, second = DIGIT.sampling(1, 1), DIGIT.sampling(1, 2)
    assert first.choice == ("0", "1", "2", "3", "4", "5")
    assert (first.max_tokens, first.seed, second.seed) == (3, 7, 8)
    free = Digit(per_document=False, structured=False, max_tokens=40, temperature=0.5, seed=0).sampling(1, 1)
    assert (free.choice, free.max_tokens, free.temperature) == (None, 40, 0.5)


def test_an_output_cut_after_a_number_is_unread_unless_it_was_a_choice() -> None:
    cut = Generation(text="Rating: 1", finish="length")
    free = Digit(per_document=False, structured=False, max_tokens=4, temperature=0.0, seed=0)
    assert free.outcomes(cut, 1) == [Outcome(None, "Rating: 1", "cut_off")]
    assert DIGIT.outcomes(Generation(text="1", finish="length"), 1) == [Outcome(1, "1")]
    ignored = Generation(text="Rating: 4", finish="length")  # of "Rating: 4/10", by a server that ignores choices
    assert DIGIT.outcomes(ignored, 1) == [Outcome(None, "Rating: 4", "cut_off")]


def test_per_document_the_schema_and_the_room_for_the_answer_follow_the_number_of_sub_questions() -> None:
    few, many = PER_DOCUMENT.sampling(2, 1), PER_DOCUMENT.sampling(30, 1)
    assert json.loads(few.json_schema or "")["required"] == ["1", "2"]
    longest = json.dumps({str(i): 5 for i in range(1, 31)})
    assert many.max_tokens >= len(longest) - longest.count('"') // 2, "a token is a character or more"
    assert few.max_tokens < many.max_tokens


def test_per_document_a_missing_cell_is_unread_and_moves_no_other() -> None:
    found = PER_DOCUMENT.outcomes(Generation(text='{"1": 2, "3": 5, "4": 0}'), 3)
    assert [(o.value, o.reason) for o in found] == [(2, ""), (None, "missing"), (5, "")]


def logs(*probabilities: float) -> tuple[float, ...]:
    return tuple(math.log(p) if p else -math.inf for p in probabilities)


def test_the_expected_rating_says_what_is_outside_the_digits() -> None:
    sampling = Expected().sampling(1, 1)
    assert (sampling.max_tokens, sampling.logprobs_of) == (1, ("0", "1", "2", "3", "4", "5"))
    outcome = Expected().outcomes(Generation(text="x", logprobs=logs(0, 0, 0, 0.2, 0.6, 0)), 1)[0]
    assert outcome.value == pytest.approx(3.75)
    assert outcome.raw == "3.7500 outside 0.2000"


def test_a_model_that_is_about_to_write_something_else_is_unread() -> None:
    found = Expected().outcomes(Generation(text="x", logprobs=logs(0, 0, 0, 0, 0.009, 0)), 1)
    assert found == [Outcome(None, "4.0000 outside 0.9910", "little_mass")]
    assert Expected().outcomes(Generation(text="x", logprobs=(-math.inf,) * 6), 1)[0].reason == "little_mass"


def test_an_engine_without_log_probabilities_is_an_error() -> None:
    assert "no log-probabilities" in Expected().outcomes(Generation(text="4"), 1)[0].error
    assert "no log-probabilities" in Likelihood("document").outcomes(Generation(text="4"), 1)[0].error


def test_likelihood_is_what_the_other_text_adds_per_token() -> None:
    readout = Likelihood("sub_question")
    assert readout.sampling(1, 1).score
    assert readout.scale is Scale.probability
    given, alone = (readout.outcomes(Generation(text="", logprobs=p), 1)[0] for p in ((-1.0, -3.0), (-4.0, -2.0, -6.0)))
    outcome = gain(given, alone)
    assert outcome == Outcome(2.0, "2.00000")
    assert readout.value_of(outcome.value or 0.0) == pytest.approx(1 / (1 + math.exp(-2)))


def test_an_error_of_either_prompt_is_an_error() -> None:
    good, bad = Outcome(1.0, "1"), Outcome(None, error="prompt too long")
    assert gain(good, bad) == gain(bad, good) == bad


def test_the_highest_window_counts_unless_one_is_missing() -> None:
    low, high = Outcome(1, "1"), Outcome(4, "4")
    unread, failed = Outcome(None, "?", "no_number"), Outcome(None, error="died")
    assert joined([low, high]) == joined([high, low]) == high
    assert joined([high, unread]) == unread
    assert joined([unread, failed, high]) == failed
