from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError

from lancer.engines.protocols import Generation
from lancer.reranking.graded import GradedRerank
from lancer.reranking.pointwise import PointwiseRerank
from tests.reranking.conversations import reranked


def test_documents_are_ordered_by_the_probability_of_yes() -> None:
    logprobs = {
        "low": (math.log(0.1), math.log(0.3)),
        "high": (math.log(0.02), math.log(0.01)),
        "none": (),
        "never": (-math.inf, -1.0),
        "certain": (-0.5, -math.inf),
        "nothing": (-math.inf, -math.inf),
        "other": (math.log(2e-8), math.log(1e-8)),
    }
    step = PointwiseRerank(engine="llm")
    result, rounds = reranked(step, [*logprobs], lambda shown: Generation(text="?", logprobs=logprobs[shown[0]]))
    assert len(rounds) == 1
    assert result.order == [4, 1, 0, 3, 2, 5, 6]
    assert result.scores is not None
    np.testing.assert_allclose(result.scores, [0.25, 2 / 3, np.nan, 0, 1, np.nan, np.nan], atol=1e-12)
    assert +result.faults == {"unreadable": 3}
    assert step.sampling().logprobs_of == ("Yes", "No")


def test_a_failed_call_leaves_its_document_behind() -> None:
    answers = {"a": Generation(text="", error="gone", finish="error"), "b": Generation(text="", logprobs=(-1.0, -2.0))}
    result, _ = reranked(PointwiseRerank(engine="llm"), ["a", "b"], lambda shown: answers[shown[0]])
    assert result.order == [1, 0]
    assert +result.faults == {"error": 1}


def test_equal_grades_keep_the_order_and_unread_ones_come_last() -> None:
    outputs = {"a": "2", "b": "who knows", "c": "3", "d": "2", "e": "7"}
    result, _ = reranked(GradedRerank(engine="llm"), [*outputs], lambda shown: outputs[shown[0]])
    assert result.order == [2, 0, 3, 1, 4]
    assert +result.faults == {"unreadable": 2}


@pytest.mark.parametrize(("grades", "digits"), [(3, "0123"), (5, "012345")])
def test_grades_are_restricted_to_their_scale(grades: int, digits: str) -> None:
    step = GradedRerank.model_validate({"engine": "llm", "grades": grades})
    assert step.sampling().choice == tuple(digits)
    assert step.identity() != GradedRerank(engine="llm", grades=3 if grades == 5 else 5).identity()


def test_a_number_at_the_token_limit_may_go_on() -> None:
    step = GradedRerank(engine="llm", structured=False)
    result, _ = reranked(step, ["a"], lambda shown: Generation(text="1", finish="length"))
    assert +result.faults == {"unreadable": 1}


def test_a_choice_at_the_token_limit_is_complete_and_anything_else_is_not() -> None:
    outputs = {"a": "1", "b": "Grade: 2"}
    step = GradedRerank(engine="llm")
    result, _ = reranked(step, [*outputs], lambda shown: Generation(text=outputs[shown[0]], finish="length"))
    assert result.scores is not None
    np.testing.assert_array_equal(result.scores, [1, np.nan])


def test_a_threshold_above_the_grades_is_refused() -> None:
    with pytest.raises(ValidationError, match="nothing reaches it"):
        GradedRerank(engine="llm", grades=3, threshold=4)
