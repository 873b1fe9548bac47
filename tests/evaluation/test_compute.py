"""ir_measures, called so that its results do not depend on what else is asked for."""

from __future__ import annotations

import random

import ir_measures
import pytest

from lancer.evaluation.compute import compute
from lancer.evaluation.judgments import Judgments
from lancer.evaluation.names import parse_measures
from lancer.formats.qrels import Qrel

MIXED = (
    "alpha_nDCG@10 alpha_nDCG(rel=2)@10 alpha_nDCG(alpha=0.3)@5 alpha_nDCG(alpha=0.3,rel=3)@10 StRecall@10 "
    "StRecall(rel=3)@5 alpha_nDCG(judged_only=True)@10 ERR_IA(rel=2)@20 NRBP(alpha=0.25) AP_IA(rel=2) P_IA@10 "
    "nDCG(gains={1:0,2:7})@10 nDCG@10 nDCG(judged_only=True)@10 P(rel=2)@10 P@10 AP AP(rel=3) SetF SetF(beta=2.0) "
    "RR@10 Judged@10 NumRet NumRel NumQ IPrec@0.3 IPrec(rel=2)@0.3 alpha_nDCG@50 StRecall(rel=2)@50 Compat"
)


@pytest.fixture(scope="module")
def judgments() -> Judgments:
    draw = random.Random(7)
    return Judgments(
        Qrel(f"q{q}", str(t), f"d{d}", draw.choice([0, 0, 0, 1, 2, 3]))
        for q in range(6)
        for d in range(0, 60, 2)
        for t in range(1, 5)
    )


@pytest.fixture(scope="module")
def orders(judgments: Judgments) -> dict[str, list[str]]:
    draw = random.Random(8)
    return {query_id: draw.sample([f"d{d}" for d in range(60)], 50) for query_id in judgments.queries}


def test_a_mixed_list_equals_single_calls(judgments: Judgments, orders: dict[str, list[str]]) -> None:
    measures = parse_measures(MIXED)
    together = compute(orders, judgments, measures)
    assert set(together) == {str(measure) for measure in measures}
    for measure in measures:
        assert compute(orders, judgments, [measure])[str(measure)] == together[str(measure)], measure
        assert any(together[str(measure)].values()), measure


def test_ir_measures_itself_answers_zero_to_a_mixed_list() -> None:
    """The reason for the groups; when this fails, `lancer.evaluation.compute` can become simpler."""
    qrels = [ir_measures.Qrel("q", "d", 2, "1"), ir_measures.Qrel("q", "d", 2, "2")]
    run = [ir_measures.ScoredDoc("q", "d", 1.0)]
    measures = parse_measures("alpha_nDCG@10 alpha_nDCG(rel=2)@10")
    assert sorted(ir_measures.calc_aggregate(measures, qrels, run).values()) == [0.0, 1.0]


def test_judged_only_leaves_out_documents_without_a_judgment(
    judgments: Judgments, orders: dict[str, list[str]]
) -> None:
    """ir_measures fails on judged_only of diversity measures; removing the unjudged documents is what it means."""
    condensed = {
        query_id: [doc_id for doc_id in order if doc_id in judgments.grades[query_id]]
        for query_id, order in orders.items()
    }
    for plain, only in (("alpha_nDCG@10", "alpha_nDCG(judged_only=True)@10"), ("nDCG@10", "nDCG(judged_only=True)@10")):
        expected = compute(condensed, judgments, parse_measures(plain))[plain]
        assert compute(orders, judgments, parse_measures(only))[only] == pytest.approx(expected)
    deep = parse_measures("alpha_nDCG(judged_only=True)@25")
    expected = compute(condensed, judgments, parse_measures("alpha_nDCG@25"))["alpha_nDCG@25"]
    assert compute(orders, judgments, deep)["alpha_nDCG(judged_only=True)@25"] == expected


def test_a_ranking_without_any_judged_document_is_no_crash() -> None:
    judgments = Judgments([Qrel("q", "1", "d", 1), Qrel("q", "2", "d", 1)])
    values = compute({"q": ["x"]}, judgments, parse_measures("alpha_nDCG(judged_only=True)@10 nDCG@10 StRecall@30"))
    assert all(row == {"q": 0.0} for row in values.values())


def test_nothing_is_written_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    compute({"q": ["d"]}, Judgments([Qrel("q", "0", "d", 1)]), parse_measures("alpha_nDCG@10"))
    assert capfd.readouterr().err == ""
