from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lancer.schema import Scale
from lancer.selection import CoverageMatrix, parse_selector
from lancer.selection.lazy import Cell
from lancer.selection.matrix import FloatArray
from lancer.stages.cascade import Cascade, JudgeOnly, linear

P = np.array([[0.9, 0.1], [0.2, math.nan], [0.5, 0.6], [0.0, 0.3]])
TEXT = [True, True, True, True]


def all_rounds(cascade: Cascade, truth: FloatArray) -> tuple[list[Cell], FloatArray]:
    """The cells asked, and the matrix that comes of them."""
    ratings, asked = cascade.ratings.copy(), []
    while cells := cascade.ask():
        assert cells == sorted(cells)
        asked += cells
        for cell in cells:
            ratings[cell] = truth[cell]
        cascade.tell({cell: None if math.isnan(truth[cell]) else float(truth[cell]) for cell in cells})
    assert len(set(asked)) == len(asked)
    return asked, ratings


def cells_of(only: JudgeOnly, has_text: list[bool] = TEXT, *, whole_documents: bool = False) -> list[Cell]:
    return all_rounds(Cascade(only, P, has_text, whole_documents=whole_documents), np.zeros_like(P))[0]


def test_the_top_documents_are_those_with_the_highest_sums_and_text() -> None:
    only = JudgeOnly(top_documents=2)
    assert cells_of(only) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert cells_of(only, [True, True, False, True]) == [(0, 0), (0, 1), (3, 0), (3, 1)]
    assert cells_of(JudgeOnly(top_documents=9)) == [(i, j) for i in range(4) for j in range(2)]


def test_uncertain_cells_lie_in_the_band_or_have_no_estimate() -> None:
    only = JudgeOnly(uncertain=(0.2, 0.5))
    assert cells_of(only) == [(1, 0), (1, 1), (2, 0), (3, 1)]
    assert cells_of(only, [True, False, True, True]) == [(2, 0), (3, 1)]


def test_parts_narrow_one_another() -> None:
    assert cells_of(JudgeOnly(top_documents=2, uncertain=(0.2, 0.6))) == [(2, 0), (2, 1)]


def test_probes_come_first_and_decide_which_documents_are_the_top_ones() -> None:
    only = JudgeOnly(top_documents=1, probe=1)
    truth = np.array([[0.0, 0.0], [0.0, 0.0], [5.0, 3.0], [5.0, 0.0]])
    cascade = Cascade(only, P, TEXT)
    probes = cascade.ask()
    assert probes == [(0, 0), (1, 0), (2, 1), (3, 1)], "of each document the likeliest cell"
    cascade.tell({cell: float(truth[cell]) for cell in probes})
    assert cascade.ask() == [(2, 0)], "3 judged and 2.5 estimated, against 0 and .5, 0 and nothing, 0 and 0"
    cascade.tell({(2, 0): 5.0})
    assert cascade.ask() == []
    assert cells_of(JudgeOnly(top_documents=1, probe=9), [True, True, True, False]) == [
        (i, j) for i in range(3) for j in range(2)
    ]
    band = JudgeOnly(top_documents=4, probe=1, uncertain=(0.2, 0.5))
    assert cells_of(band) == [(1, 0), (2, 0), (3, 1), (1, 1)], "probes are uncertain cells too"


def test_whole_documents_where_one_call_rates_all_sub_questions() -> None:
    assert cells_of(JudgeOnly(uncertain=(0.3, 0.4)), whole_documents=True) == [(1, 0), (1, 1), (3, 0), (3, 1)]
    until = JudgeOnly.model_validate({"until": {"selector": "sum(tau=1)", "k": 1, "round": 1}})
    assert cells_of(until, whole_documents=True)[:2] == [(0, 0), (0, 1)]


def test_what_is_not_asked_keeps_the_estimate_as_a_rating_in_float32() -> None:
    cascade = Cascade(JudgeOnly(top_documents=1), P, TEXT)
    assert cascade.ratings[0].tolist() == [float(np.float32(4.5)), float(np.float32(0.5))]
    assert math.isnan(cascade.ratings[1, 1])
    other = Cascade(JudgeOnly(top_documents=1), P, TEXT, rating_of=lambda p: np.where(p > 0.5, 5.0, 0.0))
    assert other.ratings[:, 0].tolist() == [5, 0, 0, 0]


chances = st.integers(0, 10_000).map(np.random.default_rng)


@settings(max_examples=60)
@given(
    chance=chances,
    spec=st.sampled_from(
        ["sum(tau=1)", "greedy-coverage(tau=4)", "greedy-sum(tau=1)", "greedy-alpha(alpha=0.5,tau=3)"]
    ),
    top=st.sampled_from([None, 3, 6]),
    band=st.sampled_from([None, (0.2, 0.7)]),
    probe=st.sampled_from([None, 1, 2]),
    size=st.integers(1, 20),
    whole=st.booleans(),
)
def test_until_decided_gives_the_top_k_of_judging_all_that_the_other_parts_allow(
    chance: np.random.Generator,
    spec: str,
    top: int | None,
    band: tuple[float, float] | None,
    probe: int | None,
    size: int,
    whole: bool,
) -> None:
    n, m, k = 9, 3, 4
    truth = chance.choice([0.0, 0.0, 1.0, 3.0, 4.0, 5.0, math.nan], (n, m))
    estimates = np.clip(np.nan_to_num(truth) / 5 * 0.6 + 0.4 * chance.random((n, m)), 0, 1).astype(np.float32)
    estimates = np.where(chance.random((n, m)) < 0.1, math.nan, estimates.astype(np.float64))
    has_text = (chance.random(n) < 0.8).tolist()
    truth[[not known for known in has_text]] = math.nan
    estimates[[not known for known in has_text]] = math.nan
    parts = {"top_documents": top, "uncertain": band, "probe": None if top is None or whole else probe}
    lazily = JudgeOnly.model_validate(parts | {"until": {"selector": spec, "k": k, "round": size}})
    asked, ratings = all_rounds(Cascade(lazily, estimates, has_text, whole_documents=whole), truth)
    if top is None and band is None:
        allowed, full = [(i, j) for i in range(n) for j in range(m) if has_text[i]], truth
    else:
        at_once = Cascade(JudgeOnly.model_validate(parts), estimates, has_text, whole_documents=whole)
        allowed, full = all_rounds(at_once, truth)
    assert set(asked) <= set(allowed)
    selector = parse_selector(spec)
    lists = [selector.select(CoverageMatrix(m, Scale.rating)).order[:k] for m in (ratings, full)]
    assert lists[0] == lists[1]


def test_slack_asks_less_and_nothing_where_the_estimates_decide() -> None:
    estimates = np.array([[0.9, 0.9], [0.5, 0.5], [0.1, 0.1]])
    truth = linear(estimates)
    counts = []
    for slack in (None, 0.25, 0.1):
        until = {"selector": "sum(tau=0)", "k": 2, "round": 1, "slack": slack}
        counts.append(len(all_rounds(Cascade(JudgeOnly(until=until), estimates, [True] * 3), truth)[0]))
    assert counts[0] > counts[1] > counts[2] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "says nothing; it takes top_documents, uncertain or until"),
        ({"uncertain": [0.7, 0.2]}, r"within 0 and 1, found \[0.7, 0.2\]"),
        ({"uncertain": [0.7, 2]}, "within 0 and 1"),
        ({"until": {"selector": "mmr(lambda=0.5)"}}, "mmr.*cannot be decided from a part"),
        ({"until": {"selector": "greedy-sum(budget=9)"}}, "needs token_counts"),
        ({"until": {"selector": "sums"}}, "did you mean|sum"),
        ({"top": 3}, "Extra inputs"),
        ({"uncertain": [0, 1], "probe": 2}, "it needs top_documents"),
    ],
)
def test_settings_that_cannot_be_meant(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        JudgeOnly.model_validate(settings)


def test_it_says_what_it_does() -> None:
    until = {"selector": "sum", "k": 5}
    only = JudgeOnly.model_validate({"top_documents": 30, "uncertain": [0.2, 0.8], "until": until})
    assert str(only) == (
        "cells of the 30 documents with the highest estimates, estimated from 0.2 to 0.8, "
        "until the top 5 of sum(tau=1) is decided (exact)"
    )
    assert "not exact" in str(JudgeOnly.model_validate({"until": until | {"slack": 0.1}}))
