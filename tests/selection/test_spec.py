"""Specs: what parses, what is refused and how, and that a selector's repr is its spec."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancer.errors import UsageError
from lancer.selection import SELECTORS, parse_selector
from lancer.selection.parameters import Choice, Flag, Number, Whole, allowed_values, field_name

CANONICAL = [
    ("sum", "sum(tau=1)"),
    ("sum()", "sum(tau=1)"),
    ("sum(tau=1.0)", "sum(tau=1)"),
    ("sum(tau=-0)", "sum(tau=0)"),
    (" sum( tau = 2.5 ) ", "sum(tau=2.5)"),
    ("sum(tau=5e-1)", "sum(tau=0.5)"),
    ("sum(tau=.3)", "sum(tau=0.3)"),
    ("max", "max"),
    ("max()", "max"),
    ("rrf", "rrf(k=60)"),
    ("rrf(k=0)", "rrf(k=0)"),
    ("greedy-sum", "greedy-sum(tau=1)"),
    ("greedy-coverage", "greedy-coverage(tau=3)"),
    ("greedy-alpha", "greedy-alpha(alpha=0.5,tau=3)"),
    ("greedy-alpha(tau=4,alpha=1)", "greedy-alpha(alpha=1,tau=4)"),
    ("greedy-expected", "greedy-expected"),
    ("greedy-expected(rest=own,budget=2500)", "greedy-expected(budget=2500)"),
    (
        "greedy-coverage(rest=second,strict=true,tau=0.3,ties=second)",
        "greedy-coverage(tau=0.3,ties=second,rest=second,strict=true)",
    ),
    ("greedy-coverage(ties=first,strict=false)", "greedy-coverage(tau=3,ties=first)"),
    ("mmr", "mmr(lambda=0.5)"),
    ("xquad(lambda=1)", "xquad(lambda=1)"),
    ("pm2(lambda=1e-3)", "pm2(lambda=0.001)"),
]


@pytest.mark.parametrize(("spec", "canonical"), CANONICAL)
def test_repr_is_canonical_and_parses_back(spec: str, canonical: str) -> None:
    selector = parse_selector(spec)
    assert repr(selector) == canonical
    assert parse_selector(canonical) == selector
    assert hash(parse_selector(canonical)) == hash(selector)


REFUSED = [
    ("", "unknown selector ''; allowed: greedy-alpha, greedy-coverage"),
    ("greedy-cov", "unknown selector 'greedy-cov'; did you mean 'greedy-coverage'?"),
    ("Sum(tau=1)", "unknown selector 'Sum'; did you mean 'sum'?"),
    ("sum)", "unknown selector 'sum)'; did you mean 'sum'?"),
    ("first-stage", "unknown selector 'first-stage'; allowed:"),
    ("sum(tau=1", "the closing parenthesis is missing"),
    ("max(", "the closing parenthesis is missing"),
    ("sum(tau=1)x", "there is text after the parenthesis"),
    ("sum(tau=1)(tau=2)", "tau must be a number from 0 to 5, found '1)(tau=2'"),
    ("sum(1)", "found '1', parameter=value is expected; sum takes tau: a number from 0 to 5"),
    ("sum(tau=1,)", "found '', parameter=value is expected"),
    ("sum(tau)", "found 'tau', parameter=value is expected"),
    ("sum(tau=)", "tau must be a number from 0 to 5, found ''"),
    ("sum(tau=abc)", "tau must be a number from 0 to 5, found 'abc'"),
    ('sum(tau="abc")', "tau must be a number from 0 to 5, found '\"abc\"'"),
    ("sum(tau=nan)", "tau must be a number from 0 to 5, found 'nan'"),
    ("sum(tau=inf)", "tau must be a number from 0 to 5, found 'inf'"),
    ("sum(tau=1e999)", "tau must be a number from 0 to 5, found inf"),
    ("sum(tau=-1)", "tau must be a number from 0 to 5, found -1"),
    ("sum(tau=7)", "tau must be a number from 0 to 5, found 7"),
    ("sum(tau=1_0)", "found '1_0'"),
    ("sum(tau=0,3)", "found '3', parameter=value is expected"),
    ("sum(tau=1,tau=2)", "tau is given twice"),
    ("sum(taus=1)", "no parameter 'taus'; did you mean 'tau'?"),
    ("max(tau=1)", "no parameter 'tau'; max takes no parameters"),
    ("rrf(k=-1)", "k must be a whole number, at least 0, found -1"),
    ("rrf(k=1.5)", "k must be a whole number, at least 0, found '1.5'"),
    ("rrf(k=" + "9" * 5000 + ")", "k must be a whole number"),
    ("greedy-alpha(alpha=1.5)", "alpha must be a number from 0 to 1, found 1.5"),
    ("greedy-alpha(alpha=NaN)", "alpha must be a number from 0 to 1, found 'NaN'"),
    ("greedy-coverage(rest=third)", "rest must be one of own, first, second, found 'third'"),
    ("greedy-coverage(strict=yes)", "strict must be true or false, found 'yes'"),
    ("greedy-coverage(budget=0)", "budget must be a whole number, at least 1, found 0"),
    ("greedy-coverage(budget=none)", "budget must be a whole number, at least 1, found 'none'"),
    ("mmr(lambda=2)", "lambda must be a number from 0 to 1, found 2"),
    ("mmr(lambda_=0.2)", "no parameter 'lambda_'; did you mean 'lambda'?"),
]


@pytest.mark.parametrize(("spec", "message"), REFUSED)
def test_refused_with_what_is_allowed(spec: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_selector(spec)
    assert message in str(refused.value)


@pytest.mark.parametrize("values", [{"tau": None}, {"tau": True}, {"tau": "1"}, {"tau": float("nan")}, {"tau": -0.1}])
def test_values_are_checked_without_a_spec_too(values: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="tau must be a number from 0 to 5"):
        SELECTORS["sum"](**values)


@given(st.data())
def test_every_selector_round_trips(data: st.DataObject) -> None:
    kind = SELECTORS[data.draw(st.sampled_from(sorted(SELECTORS)))]
    values: dict[str, object] = {}
    for name, allowed in allowed_values(kind).items():
        match allowed:
            case Number(low, high):
                values[field_name(name)] = data.draw(st.floats(low, high))
            case Whole(low):
                values[field_name(name)] = data.draw(st.integers(low, 10**17))
            case Choice(words):
                values[field_name(name)] = data.draw(st.sampled_from(words))
            case Flag():
                values[field_name(name)] = data.draw(st.booleans())
    selector = kind(**values)
    assert parse_selector(repr(selector)) == selector
    assert repr(selector).split() == [repr(selector)]
