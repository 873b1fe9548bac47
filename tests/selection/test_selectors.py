"""Each selector on matrices small enough to compute by hand, and all of them on degenerate ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from lancer.errors import PlanError
from lancer.schema import Scale
from lancer.selection import SELECTORS, CoverageMatrix, Selection, Selector, parse_selector
from lancer.selection.arithmetic import descending
from lancer.selection.matrix import IntArray
from lancer.selection.parameters import allowed_values

ALL = sorted(SELECTORS)


def select(spec: str, values: Any, scale: str = "rating", **more: Any) -> Selection:
    return parse_selector(spec).select(CoverageMatrix(values, Scale(scale), **more))


def order(spec: str, values: Any, scale: str = "rating", **more: Any) -> list[int]:
    return select(spec, values, scale, **more).order


def test_sum_counts_what_reaches_tau() -> None:
    values = [[3, 3], [5, 0], [None, 3]]
    assert order("sum(tau=1)", values) == [0, 1, 2]  # 6, 5, 3
    assert order("sum(tau=4)", values) == [1, 0, 2]  # 0, 5, 0


def test_max_takes_the_best_sub_question() -> None:
    selection = select("max", [[2, 2], [0, 3], [3, 0]])
    assert selection.order == [1, 2, 0]
    assert selection.covers == [[1], [0], []]  # half of the scale: 3 and above


def test_rrf_gives_equal_ratings_the_lowest_rank() -> None:
    # Ranks 1 1 3 4 and 1 3 3 2; at k = 0: 2, 1.33, .67, .75. Dense ranks would let the third tie with the fourth.
    assert order("rrf(k=0)", [[5, 3], [5, 0], [4, 0], [0, 1]]) == [0, 1, 3, 2]


def test_rrf_ties_in_first_stage_order_and_adds_nothing_for_what_is_missing() -> None:
    assert order("rrf", [[5, 0], [5, 2], [0, 2]]) == [1, 0, 2]  # 1/61 + 1/63, 2/61, 1/63 + 1/61
    assert order("rrf", [[None], [0]]) == [1, 0]
    # The same ranks 1, 2, 3 in three orders of sub-questions tie exactly.
    assert order("rrf(k=7)", [[5, 4, 3], [3, 5, 4], [4, 3, 5]]) == [0, 1, 2]


def test_greedy_sum_breaks_equal_gains_by_own_utility() -> None:
    selection = select("greedy-sum", [[5, 0, 2], [4, 4, 0], [0, 3, 3]])
    # Alone 7, 8, 6. After the second document both others gain 3.
    assert selection.order == [1, 0, 2]
    assert selection.covers == [[0, 1], [2], []]


def test_greedy_sum_ties_by_the_first_stage_or_a_second_order() -> None:
    values = [[0, 3, 3], [4, 4, 0], [5, 0, 2]]
    assert order("greedy-sum", values) == [1, 2, 0]
    assert order("greedy-sum(ties=first)", values) == [1, 0, 2]
    assert order("greedy-sum(ties=second)", values, second_order=[2, 0, 1]) == [1, 2, 0]


def test_greedy_sum_ignores_ratings_under_tau() -> None:
    # At tau 3: alone 5, 8, 6, then gains 1 and 3.
    assert order("greedy-sum(tau=3)", [[5, 0, 2], [4, 4, 0], [0, 3, 3]]) == [1, 2, 0]


COVERAGE = [[5, 0, 0], [4, 4, 0], [0, 3, 3], [2, 2, 2]]


def test_greedy_coverage() -> None:
    selection = select("greedy-coverage(tau=3)", COVERAGE)
    assert selection.order == [1, 2, 0, 3]  # gains 2 (tie, first stage), 1; then alone 1, 0
    assert selection.covers == [[0, 1], [2], [], []]
    assert selection.uncovered == []
    high = select("greedy-coverage(tau=4)", COVERAGE)
    assert (high.order, high.covers, high.uncovered) == ([1, 0, 2, 3], [[0, 1], [], [], []], [2])


def test_greedy_coverage_with_ties_and_rest_by_a_second_order() -> None:
    second = [3, 2, 1, 0]
    assert order("greedy-coverage(ties=second,rest=second)", COVERAGE, second_order=second) == [2, 1, 3, 0]
    assert order("greedy-coverage(rest=second)", COVERAGE, second_order=second) == [1, 2, 3, 0]
    assert order("greedy-coverage(ties=second)", COVERAGE, second_order=second) == [2, 1, 0, 3]
    assert order("greedy-coverage(rest=first)", [[2, 0], [3, 0], [3, 3]]) == [2, 0, 1]


def test_des_counts_only_what_is_strictly_above_its_threshold() -> None:
    stored = np.array([[0.3], [0.31]], dtype=np.float32)
    assert order("greedy-coverage(tau=0.3,strict=true)", stored, "probability") == [1, 0]
    assert order("greedy-coverage(tau=0.3)", stored, "probability") == [0, 1]


def test_greedy_alpha_discounts_what_is_covered_already() -> None:
    values = [[3, 3, 0], [3, 3, 0], [0, 0, 3], [3, 0, 0]]
    assert order("greedy-alpha(alpha=0.5)", values) == [0, 1, 2, 3]  # 2; 1 and 1 (own 2 and 1); 1; .25
    assert order("greedy-alpha(alpha=0.6)", values) == [0, 2, 1, 3]  # 2; .8 and 1; .8; .16
    assert order("greedy-alpha(alpha=1)", values) == order("greedy-coverage", values) == [0, 2, 1, 3]
    assert order("greedy-alpha(alpha=0)", values) == [0, 1, 2, 3]


def test_greedy_expected_needs_no_threshold() -> None:
    values = [[0.9, 0.0], [0.6, 0.5], [0.1, 0.8]]
    assert order("greedy-expected", values, "probability") == [1, 2, 0]  # 1.1; .36 and .44; then the first
    assert order("greedy-expected", [[4, 0], [3, 3], [0, 4]]) == [1, 0, 2]  # ratings / 5: 1.2; .32 and .32


def test_budget_prefers_gain_per_token() -> None:
    values = [[3, 3, 3, 0], [3, 3, 0, 0], [0, 0, 3, 3]]
    tokens = [100, 40, 40]
    assert order("greedy-coverage", values) == [0, 2, 1]
    assert order("greedy-coverage(budget=100)", values, token_counts=tokens) == [
        1,
        2,
        0,
    ]  # 4 in 80 tokens, not 3 in 100
    assert order("greedy-coverage(budget=79)", values, token_counts=tokens) == [1, 2, 0]
    assert order("greedy-coverage(budget=39)", values, token_counts=tokens) == [0, 2, 1]  # nothing fits: no limit


def test_budget_takes_the_best_single_document_where_that_is_worth_more() -> None:
    values = [[3, 0, 0, 0], [3, 3, 3, 3]]
    assert order("greedy-coverage(budget=100)", values, token_counts=[1, 100]) == [1, 0]
    assert order("greedy-coverage(budget=101)", values, token_counts=[1, 100]) == [0, 1]


def test_a_document_without_tokens_costs_one() -> None:
    assert order("greedy-sum(budget=5)", [[3, 0], [5, 5]], token_counts=[0, 4]) == [0, 1]


def test_mmr_avoids_what_resembles_the_chosen() -> None:
    values, vectors = [[1], [1], [1]], [[1, 0], [1, 0], [0, 1]]
    assert order("mmr(lambda=0.5)", values, embeddings=vectors) == [0, 2, 1]  # ranks 1, 2/3, 1/3
    assert order("mmr(lambda=1)", values, embeddings=vectors) == [0, 1, 2]
    assert order("mmr(lambda=0.5)", [[5, 0], [4, 0], [0, 1]]) == [0, 2, 1]  # no embeddings: cosine of the rows


def test_mmr_uses_first_stage_scores() -> None:
    # Scores 1, .9, 0 between minimum and maximum: .45 - .4 beats 0 - 0.
    vectors = [[1, 0], [0.8, 0.6], [0, 1]]
    assert order("mmr(lambda=0.5)", [[1], [1], [1]], embeddings=vectors, first_stage_scores=[20, 19, 10]) == [0, 1, 2]
    assert order("mmr(lambda=0.5)", [[1], [1], [1]], embeddings=vectors, first_stage_scores=[20, 12, 10]) == [0, 2, 1]


def test_xquad_weighs_relevance_against_what_is_uncovered() -> None:
    values = [[0.8, 0.0], [0.8, 0.0], [0.0, 0.6]]
    assert order("xquad(lambda=0.5)", values, "probability") == [0, 1, 2]  # second step .373 and .317
    assert order("xquad(lambda=0.9)", values, "probability") == [0, 2, 1]  # second step .139 and .303
    assert order("xquad(lambda=0)", values, "probability") == [0, 1, 2]


def test_pm2_gives_seats_in_proportion() -> None:
    values = [[1.0, 0.0], [1.0, 0.0], [0.0, 0.5], [0.0, 0.0]]
    assert order("pm2(lambda=0.5)", values, "probability") == [0, 2, 1, 3]
    # The seat of a sub-question that no remaining document answers goes to the next one.
    assert order("pm2(lambda=1)", [[0.0, 0.2], [1.0, 0.0], [0.0, 0.4]], "probability") == [1, 2, 0]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scale", list(Scale))
@pytest.mark.parametrize(
    "values",
    [np.zeros((n, m)) for n in (0, 1, 2, 7) for m in (0, 1, 2, 9)] + [np.full((n, 3), np.nan) for n in (1, 2, 7)],
    ids=lambda values: f"{values.shape[0]}x{values.shape[1]}{'' if values.sum() == 0 else '-missing'}",
)
def test_without_any_answer_the_first_stage_order_stays(name: str, scale: Scale, values: np.ndarray[Any, Any]) -> None:
    spec = f"{name}(tau=0.5)" if "tau" in allowed_values(SELECTORS[name]) else name
    selection = select(spec, values, scale)
    assert selection.order == list(range(len(values)))
    assert selection.covers == [[] for _ in values]
    assert selection.uncovered == list(range(values.shape[1]))


@pytest.mark.parametrize("name", ALL)
def test_one_candidate_and_one_sub_question(name: str) -> None:
    selection = select(name, [[5]])
    assert (selection.order, selection.covers, selection.uncovered) == ([0], [[0]], [])


@pytest.mark.parametrize("name", ["sum", "greedy-sum", "greedy-coverage", "greedy-alpha"])
def test_a_tau_above_the_scale_is_refused(name: str) -> None:
    selector = parse_selector(f"{name}(tau=3)")
    selector.check(Scale.rating)
    message = r"tau 3 is above the maximum of the scale 'probability' \(0 to 1\)"
    with pytest.raises(PlanError, match=message):
        selector.check(Scale.probability)
    with pytest.raises(PlanError, match=message):
        select(repr(selector), [[0.4]], "probability")


def test_strictly_above_the_maximum_is_refused() -> None:
    parse_selector("greedy-coverage(tau=1)").check(Scale.probability)
    with pytest.raises(PlanError, match="no value of the scale 'probability' is above its maximum 1"):
        parse_selector("greedy-coverage(tau=1,strict=true)").check(Scale.probability)


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ("greedy-coverage", ()),
        ("greedy-coverage(ties=second)", ("second_order",)),
        ("greedy-alpha(rest=second,budget=9)", ("second_order", "token_counts")),
    ],
)
def test_a_selector_says_what_it_needs(spec: str, needs: tuple[str, ...]) -> None:
    selector = parse_selector(spec)
    assert selector.needs == needs
    if needs:
        with pytest.raises(PlanError, match=f"needs {needs[0]}: .* this matrix has none"):
            select(spec, [[3]])


def test_a_new_selector_is_one_class_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True, repr=False)
    class Last(Selector):
        name: ClassVar[str] = "last"

        def order(self, matrix: CoverageMatrix) -> IntArray:
            return descending(matrix.filled[:, -1])

    monkeypatch.setitem(SELECTORS, Last.name, Last)
    assert repr(parse_selector("last()")) == "last"
    assert order("last", [[5, 0], [0, 3]]) == [1, 0]
