from __future__ import annotations

import math

import pytest

from lancer.prompts.reading_logprobs import expected, logistic, per_token


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) if p else -math.inf for p in probabilities]


@pytest.mark.parametrize(
    ("probabilities", "rating", "outside"),
    [
        ((0, 0, 0, 0, 0, 1), 5.0, 0.0),
        ((0.25, 0.25, 0, 0, 0, 0), 0.5, 0.5),
        ((0.1, 0.1, 0.2, 0.2, 0.2, 0.2), 2.9, 0.0),
        ((0, 0, 0, 0.0002, 0.0006, 0), 3.75, 0.9992),
    ],
)
def test_the_expected_rating_is_over_the_digits_alone(
    probabilities: tuple[float, ...], rating: float, outside: float
) -> None:
    found = expected(logs(*probabilities))
    assert found == pytest.approx((rating, outside))


def test_probabilities_too_small_for_a_float_still_have_a_mean() -> None:
    assert expected([-2000.0, -2000.0, -math.inf, -math.inf, -math.inf, -math.inf]) == pytest.approx((0.5, 1.0))


def test_without_any_probability_there_is_no_rating() -> None:
    rating, outside = expected([-math.inf] * 6)
    assert math.isnan(rating)
    assert outside == 1.0


def test_rounding_above_one_leaves_nothing_outside() -> None:
    assert expected([1e-7, *[-math.inf] * 5])[1] == 0.0


def test_nats_per_token() -> None:
    assert per_token([-1.0, -2.0, -6.0]) == -3.0
    assert math.isnan(per_token([]))


@pytest.mark.parametrize(
    ("nats", "probability"), [(0.0, 0.5), (math.log(3), 0.75), (-math.log(3), 0.25), (-800.0, 0.0)]
)
def test_the_logistic(nats: float, probability: float) -> None:
    assert logistic(nats) == pytest.approx(probability)
