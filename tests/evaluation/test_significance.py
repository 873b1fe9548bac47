"""Tests, corrections and intervals against hand computation and scipy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from lancer.errors import InputError, UsageError
from lancer.evaluation.significance import (
    benjamini_hochberg,
    compare,
    confidence_interval,
    differences,
    holm,
    randomisation,
    t_test,
)


def row(values: list[float]) -> dict[str, float]:
    return {f"q{number}": value for number, value in enumerate(values)}


class TestRandomisation:
    def test_by_hand(self) -> None:
        # Of the 8 sign assignments of (3, 2, 1) only +++ and --- reach a sum of 6.
        assert randomisation(np.array([3.0, 2.0, 1.0])) == 2 / 8
        # (3, 2, -1): a sum of 4 or more is reached by +++, ++-, and their negatives.
        assert randomisation(np.array([3.0, 2.0, -1.0])) == 4 / 8

    def test_exact_up_to_16_differences(self) -> None:
        values = np.round(np.random.default_rng(3).normal(0.1, 1, 10), 2)
        hits = 0
        for signs in itertools.product((-1, 1), repeat=10):
            hits += abs(sum(s * round(100 * v) for s, v in zip(signs, values, strict=True))) >= abs(
                sum(round(100 * v) for v in values)
            )
        assert randomisation(values) == hits / 2**10

    def test_queries_without_a_difference_change_nothing(self) -> None:
        values = np.array([0.5, 0.0, -0.25, 0.0, 0.75])
        assert randomisation(values) == randomisation(values[values != 0])

    def test_random_assignments_come_near_the_exact_value_and_are_seeded(self) -> None:
        values = np.random.default_rng(5).normal(0.2, 1, 40)
        p = randomisation(values)
        exact = stats.permutation_test(
            (values,), np.mean, permutation_type="samples", n_resamples=50_000, rng=np.random.default_rng(9)
        ).pvalue
        assert p == pytest.approx(exact, abs=0.005)
        assert p == randomisation(values)
        assert p != randomisation(values, seed=1)

    def test_p_is_never_zero(self) -> None:
        assert randomisation(np.full(100, 0.5)) == 1 / 100_001

    def test_ties_with_the_observed_mean_count_in_any_order_of_addition(self) -> None:
        values = np.array([0.1, 0.2, 0.3, -0.6, 0.7, 0.1])
        assert randomisation(values) == randomisation(values[::-1])


class TestT:
    def test_equals_scipy(self) -> None:
        generator = np.random.default_rng(1)
        run, baseline = generator.random(30), generator.random(30)
        assert t_test(run - baseline) == pytest.approx(stats.ttest_rel(run, baseline).pvalue)

    def test_by_hand(self) -> None:
        # mean 2, standard deviation 1, n = 3: t = 2 sqrt(3), p = 1 - t / sqrt(t^2 + 2) for 2 degrees of freedom
        t = 2 * 3**0.5
        assert t_test(np.array([1.0, 2.0, 3.0])) == pytest.approx(1 - t / (t**2 + 2) ** 0.5)

    def test_one_query_proves_nothing(self) -> None:
        assert t_test(np.array([0.3])) == 1.0

    def test_the_same_difference_everywhere(self) -> None:
        assert t_test(np.array([0.25, 0.25, 0.25])) == 0.0


@pytest.mark.parametrize("test", ["randomisation", "t"])
@pytest.mark.parametrize("queries", [1, 5, 50])
def test_identical_runs_give_one(test: str, queries: int) -> None:
    values = row([0.1 * n for n in range(queries)])
    comparison = compare({"same": values}, values, test=test)["same"]
    assert comparison.p == 1.0
    assert comparison.p_corrected == 1.0
    assert comparison.difference == 0.0
    assert not comparison.significant


class TestCorrections:
    PS = (0.01, 0.04, 0.03, 0.005)

    def test_holm_by_hand(self) -> None:
        # sorted .005 .01 .03 .04 times 4 3 2 1, never falling: .02 .03 .06 .06
        assert holm(self.PS) == pytest.approx([0.03, 0.06, 0.06, 0.02])
        assert holm([0.6, 0.7]) == [1.0, 1.0]

    def test_benjamini_hochberg_equals_scipy(self) -> None:
        assert benjamini_hochberg(self.PS) == pytest.approx(stats.false_discovery_control(self.PS))
        # .005 .01 .03 .04 times 4/1 4/2 4/3 4/4, never rising from the end: .02 .02 .04 .04
        assert benjamini_hochberg(self.PS) == pytest.approx([0.02, 0.04, 0.04, 0.02])

    @pytest.mark.parametrize("correct", [holm, benjamini_hochberg])
    def test_one_hypothesis_and_none(self, correct: object) -> None:
        assert correct([0.03]) == [0.03]  # type: ignore[operator]
        assert correct([]) == []  # type: ignore[operator]


class TestCompare:
    BASELINE = row([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])

    def test_the_baseline_is_no_hypothesis(self) -> None:
        """Two compared runs: Holm doubles the smaller p, it does not treble it."""
        better = {query_id: value + 0.1 for query_id, value in self.BASELINE.items()}
        mixed = {query_id: value + 0.1 * (-1) ** n for n, (query_id, value) in enumerate(self.BASELINE.items())}
        found = compare({"better": better, "mixed": mixed}, self.BASELINE)
        assert found["better"].p == pytest.approx(2 / 64)
        assert found["better"].p_corrected == pytest.approx(4 / 64)
        assert found["mixed"].p_corrected == 1.0
        assert found["better"].difference == pytest.approx(0.1)
        assert (found["mixed"].better, found["mixed"].worse) == (3, 3)

    def test_pairs_are_made_by_query_id(self) -> None:
        shuffled = dict(reversed(self.BASELINE.items()))
        assert set(differences(shuffled, self.BASELINE).values()) == {0.0}

    def test_other_queries_are_an_error(self) -> None:
        with pytest.raises(InputError, match=r"2 are in one only \(q5, q9\)"):
            differences({**{f"q{n}": 0.0 for n in range(5)}, "q9": 1.0}, self.BASELINE)
        with pytest.raises(InputError, match="there are none"):
            differences({}, {})

    def test_unknown_names_are_usage_errors(self) -> None:
        with pytest.raises(UsageError, match=r"test 'randomization' does not exist; did you mean 'randomisation'\?"):
            compare({"a": self.BASELINE}, self.BASELINE, test="randomization")
        with pytest.raises(UsageError, match="correction 'bonferroni' does not exist; allowed: bh, holm"):
            compare({"a": self.BASELINE}, self.BASELINE, correction="bonferroni")


class TestConfidenceInterval:
    def test_comes_near_the_normal_one(self) -> None:
        values = np.random.default_rng(2).normal(0.5, 0.1, 400)
        low, high = confidence_interval(row(list(values)))
        half = 1.96 * values.std() / 20
        assert low == pytest.approx(values.mean() - half, abs=0.001)
        assert high == pytest.approx(values.mean() + half, abs=0.001)

    def test_is_seeded(self) -> None:
        values = row([0.1, 0.5, 0.9, 0.2])
        assert confidence_interval(values) == confidence_interval(values)
        assert confidence_interval(values, level=0.5)[0] > confidence_interval(values)[0]

    def test_of_one_query_is_its_value(self) -> None:
        assert confidence_interval({"q": 0.25}) == (0.25, 0.25)
