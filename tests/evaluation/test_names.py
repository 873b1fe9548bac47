"""Measure names: what is accepted, and what the message says when it is not."""

from __future__ import annotations

import pytest

from lancer.errors import UsageError
from lancer.evaluation.names import cutoff_of, parse_measures


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("alpha_nDCG@10 StRecall@10 nDCG@10 Judged@10", ["alpha_nDCG@10", "StRecall@10", "nDCG@10", "Judged@10"]),
        ("P(rel=2)@10, AP", ["P(rel=2)@10", "AP"]),
        ("P(rel=2, judged_only=True)@10", ["P(rel=2,judged_only=True)@10"]),
        ("nDCG(gains={0:0, 1:3})@10 RR", ["nDCG(gains={1:3})@10", "RR"]),
        ("Cov@10", ["Cov@10"]),
        ("Cov(tau=3)@10", ["Cov@10"]),
        ("Cov(tau=4,of=all)@5", ["Cov(tau=4,of='all')@5"]),
        ("Cov(of='all')@5", ["Cov(of='all')@5"]),
        ("MRR@10 NDCG@3", ["RR@10", "nDCG@3"]),
        ("alpha_nDCG(rel=4)@100 StRecall@50", ["alpha_nDCG(rel=4)@100", "StRecall@50"]),
        ("AP AP MAP", ["AP"]),
        ("\n nDCG@10\tAP ", ["nDCG@10", "AP"]),
    ],
)
def test_names_are_those_of_ir_measures(text: str, names: list[str]) -> None:
    assert [str(measure) for measure in parse_measures(text)] == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no measure is named"),
        (" , ", "no measure is named"),
        ("ndcg@10", "did you mean 'nDCG@10'?"),
        ("alpha-nDCG@10", "did you mean 'alpha_nDCG@10'?"),
        ("alphandcg(rel=4)@10", "did you mean 'alpha_nDCG(rel=4)@10'?"),
        ("map", "did you mean 'AP'?"),
        ("ndcg_cut_10", "did you mean 'nDCG@10'?"),
        ("Coverage", "measure 'Coverage' does not exist"),
        ("StRecal@10", "did you mean 'StRecall'?"),
        ("zzz", "allowed: AP, AP_IA, Bpref, Compat, Cov,"),
        ("P", "measure 'P' needs cutoff, for example P@10"),
        ("alpha_nDCG", "needs cutoff, for example alpha_nDCG@10"),
        ("Cov", "needs cutoff, for example Cov@10"),
        ("IPrec", "needs recall, for example IPrec"),
        ("P@0", "cutoff is 0; allowed: at least 1"),
        ("P@-1", "cannot be read"),
        ("P(rel=0)@3", "rel is 0; allowed: at least 1"),
        ("P(rel='a')@3", "rel is 'a'; allowed: int"),
        ("P(rel=True)@3", "rel is True; allowed: int"),
        ("P(re=2)@10", "P has no parameter 're'; did you mean 'rel'?"),
        ("AP_IA@10", "AP_IA takes no cutoff"),
        ("alpha_nDCG(alpha=2.0)@10", "alpha is 2.0; allowed: 0 to 1"),
        ("alpha_nDCG(alpha=1)@10", "alpha is 1; allowed: float"),
        ("IPrec@1.5", "recall is 1.5; allowed: 0 to 1"),
        ("Cov(of=some)@10", "of is 'some'; allowed: 'answerable', 'all'"),
        ("Cov(tau=abc)@10", "tau is 'abc'; allowed: int or float"),
        ("Cov(tau=7)@10", "tau is 7; allowed: 0 to 5"),
        ("alpha_DCG@30", "the cutoff is at most 20; only StRecall and alpha_nDCG go deeper"),
        ("RBP(rel=1)", "no evaluator here computes it"),
        ("ERR@10", "no evaluator here computes it"),
        ("nDCG@x", "cannot be read"),
        ("nDCG@10@5", "cannot be read"),
        ("P(rel=2@10", "cannot be read"),
        ("@10", "does not exist"),
    ],
)
def test_a_wrong_name_is_a_usage_error(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_measures(text)
    assert message in str(caught.value)


def test_cutoff() -> None:
    assert [cutoff_of(measure) for measure in parse_measures("nDCG@7 AP Cov@3 IPrec@0.5")] == [7, None, 3, None]
