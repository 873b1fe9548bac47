"""Several runs side by side."""

from __future__ import annotations

import pytest

from lancer.errors import UsageError
from lancer.evaluation.measures import Evaluation, evaluate, parse_measures
from lancer.evaluation.results import collect
from lancer.formats.qrels import Qrel

QRELS = [Qrel(f"q{n}", "0", "a", 1) for n in range(8)]
MEASURES = parse_measures("P@1 NumRet")


def run(good: int, documents: int = 2) -> Evaluation:
    """Finds the relevant document first in `good` of eight queries."""
    others = [f"x{n}" for n in range(documents - 1)]
    rankings = {f"q{n}": ["a", *others] if n < good else [*others, "a"] for n in range(8)}
    return evaluate(rankings, QRELS, MEASURES)


def test_every_run_but_the_baseline_is_compared() -> None:
    results = collect({"base": run(0), "all": run(8), "half": run(4)}, baseline="base")
    assert results.comparisons["P@1"].keys() == {"all", "half"}
    assert results.comparisons["P@1"]["all"].p == 2 / 256
    assert results.comparisons["P@1"]["all"].p_corrected == 4 / 256
    assert results.comparisons["P@1"]["half"].difference == 0.5
    assert (results.test, results.correction) == ("randomisation", "holm")


def test_without_a_baseline_there_are_intervals_only() -> None:
    results = collect({"half": run(4)})
    assert results.comparisons == {}
    low, high = results.intervals["P@1"]["half"]
    assert 0 < low < 0.5 < high < 1


def test_what_is_a_sum_has_the_interval_and_difference_of_a_sum() -> None:
    results = collect({"base": run(0), "longer": run(0, documents=3)}, baseline="base")
    assert results.intervals["NumRet"]["base"] == (16, 16)
    assert results.comparisons["NumRet"]["longer"].difference == 8


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["bm25", "des"], {"baseline": "bm2"}, "baseline 'bm2' is none of the runs; did you mean 'bm25'?"),
        (["bm25"], {"baseline": "bm25"}, "there is no run to compare with the baseline"),
        (["bm25", "des"], {"test": "t"}, "a test and a correction need a baseline"),
        (["bm25", "des"], {"correction": "bh"}, "a test and a correction need a baseline"),
    ],
)
def test_usage_errors(names: list[str], options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        collect({name: run(4) for name in names}, **options)  # type: ignore[arg-type]
    assert message in str(caught.value)
