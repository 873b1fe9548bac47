"""What an evaluation does with queries, ties, repeats and grades; one test per difference its docstring lists."""

from __future__ import annotations

import ir_measures
import numpy as np
import pyndeval
import pytest
import pytrec_eval

from lancer.errors import InputError, UsageError
from lancer.evaluation.measures import evaluate, order_of, parse_measures
from lancer.evaluation.rated import RatedPairs
from lancer.formats.qrels import Qrel
from lancer.schema import Scale

QRELS = [Qrel("q1", "0", "a", 1), Qrel("q1", "0", "b", 0), Qrel("q2", "0", "a", 1)]


def mean(rankings: dict[str, list[str]], name: str, qrels: list[Qrel] = QRELS) -> float:
    return evaluate(rankings, qrels, parse_measures(name)).mean[name]


class TestQueries:
    def test_one_that_the_run_lacks_counts_zero(self) -> None:
        evaluation = evaluate({"q1": ["a"]}, QRELS, parse_measures("P@1 alpha_nDCG@5 Cov(tau=1)@5 Judged@1"))
        for row in evaluation.per_query.values():
            assert row == {"q1": 1.0, "q2": 0.0}
        assert set(evaluation.mean.values()) == {0.5}
        assert evaluation.judged == {"judged@1": 0.5, "judged@5": 0.5}
        assert evaluation.queries_missing == ("q2",)
        assert "queries of the judgments that the run lacks, counted 0: 1 (q2)" in evaluation.notes

    def test_one_without_documents_counts_as_missing(self) -> None:
        evaluation = evaluate({"q1": ["a"], "q2": []}, QRELS, parse_measures("P@1"))
        assert evaluation.queries_missing == ("q2",)

    def test_one_that_the_qrels_lack_is_ignored_and_reported(self) -> None:
        evaluation = evaluate({"q1": ["a"], "q2": ["a"], "q9": ["a"]}, QRELS, parse_measures("P@1"))
        assert evaluation.mean == {"P@1": 1.0}
        assert evaluation.queries_ignored == ("q9",)
        assert "queries of the run that the judgments lack, ignored: 1 (q9)" in evaluation.notes

    def test_none_in_common_is_an_error(self) -> None:
        with pytest.raises(InputError, match=r"no query in common \(run: q9; qrels: q1, q2\)"):
            evaluate({"q9": ["a"]}, QRELS, parse_measures("P@1"))

    def test_counts_of_the_qrels_do_not_depend_on_the_run(self) -> None:
        evaluation = evaluate({"q1": ["a"]}, QRELS, parse_measures("NumQ NumRel NumRet"))
        assert evaluation.mean == {"NumQ": 2.0, "NumRel": 2.0, "NumRet": 1.0}

    def test_interleaved_lines_are_put_together(self) -> None:
        """pyndeval takes each block of lines for a whole query, and the last one stands."""
        qrels = [("q1", "1", "a", 1), ("q2", "1", "b", 1)]
        lines = [("q1", "a", 2.0), ("q2", "b", 2.0), ("q1", "x", 1.0)]
        assert pyndeval.ndeval(qrels, lines, measures=["strec@5"])["q1"]["strec@5"] == 0.0
        ours = [Qrel("q1", "1", "a", 1), Qrel("q2", "1", "b", 1)]
        rankings: dict[str, list[tuple[str, float]]] = {}
        for query_id, doc_id, score in lines:
            rankings.setdefault(query_id, []).append((doc_id, score))
        assert evaluate(rankings, ours, parse_measures("StRecall@5")).mean == {"StRecall@5": 1.0}


class TestTies:
    RANKING = (("b", 1.0), ("a", 1.0), ("c", 1.0))

    def test_the_order_of_the_ranking_is_final(self) -> None:
        assert order_of(self.RANKING) == ["b", "a", "c"]

    def test_trec_eval_sorts_ids_down_and_pyndeval_up(self) -> None:
        assert order_of(self.RANKING, "trec_eval") == ["c", "b", "a"]
        assert order_of(self.RANKING, "pyndeval") == ["a", "b", "c"]
        for doc_id in "abc":
            scores = dict(self.RANKING)
            found = pytrec_eval.RelevanceEvaluator({"q": {doc_id: 1}}, {"recip_rank"}).evaluate({"q": scores})
            assert 1 / found["q"]["recip_rank"] == 1 + order_of(self.RANKING, "trec_eval").index(doc_id)
            run = [("q", name, score) for name, score in self.RANKING]
            first = pyndeval.ndeval([("q", "1", doc_id, 1)], run, measures=["strec@1"])["q"]["strec@1"]
            assert first == float(order_of(self.RANKING, "pyndeval")[0] == doc_id)

    def test_the_measures_follow(self) -> None:
        qrels = [Qrel("q", "1", "c", 1), Qrel("q", "2", "c", 1)]
        for ties, value in (("lancer", 0.0), ("trec_eval", 1.0), ("pyndeval", 0.0)):
            evaluation = evaluate({"q": self.RANKING}, qrels, parse_measures("P@1 StRecall@1"), ties=ties)
            assert evaluation.mean == {"P@1": value, "StRecall@1": value}, ties
        assert "ties as in pyndeval; queries whose order that changes: 1" in evaluation.notes

    def test_near_ties_are_none_here_and_ties_to_trec_eval(self) -> None:
        higher = float(np.nextafter(1.0, 2.0))
        ranking = [("a", higher), ("b", 1.0)]
        assert order_of(ranking) == ["a", "b"]
        assert order_of(ranking, "pyndeval") == ["a", "b"]
        assert order_of(ranking, "trec_eval") == ["b", "a"]
        qrels = [Qrel("q", "0", "a", 1)]
        measures = parse_measures("RR")
        assert evaluate({"q": ranking}, qrels, measures).mean == {"RR": 1.0}
        found = ir_measures.calc_aggregate(measures, [ir_measures.Qrel("q", "a", 1)], {"q": dict(ranking)})
        assert list(found.values()) == [0.5]
        assert evaluate({"q": ranking}, qrels, measures, ties="trec_eval").mean == {"RR": 0.5}

    def test_other_orders_need_scores(self) -> None:
        with pytest.raises(UsageError, match="needs the scores"):
            order_of(["a", "b"], "trec_eval")

    def test_an_unknown_order_is_a_usage_error(self) -> None:
        with pytest.raises(UsageError, match=r"ties 'treceval' does not exist; did you mean 'trec_eval'\?"):
            evaluate({"q1": ["a"]}, QRELS, parse_measures("P@1"), ties="treceval")


def test_a_repeated_document_keeps_its_first_place() -> None:
    """pyndeval counts it twice."""
    qrels = [Qrel("q", "1", "a", 1), Qrel("q", "2", "b", 1)]
    run = [("q", "a", 3.0), ("q", "a", 2.0), ("q", "b", 1.0)]
    raw = [tuple(qrel) for qrel in qrels]
    assert pyndeval.ndeval(raw, run, measures=["strec@2"])["q"]["strec@2"] == 0.5
    evaluation = evaluate({"q": ["a", "a", "b"]}, qrels, parse_measures("StRecall@2 P@2"))
    assert evaluation.mean == {"StRecall@2": 1.0, "P@2": 1.0}
    assert "repeated documents, first place kept: 1" in evaluation.notes


def test_cutoffs_above_20() -> None:
    qrels = [Qrel("q", str(t), f"d{t}", 1) for t in range(40)]
    ranking = [f"d{t}" for t in range(40)]
    evaluation = evaluate({"q": ranking}, qrels, parse_measures("alpha_nDCG@30 StRecall@30 StRecall@20"))
    assert evaluation.mean == pytest.approx({"alpha_nDCG@30": 1.0, "StRecall@30": 0.75, "StRecall@20": 0.5})
    assert "StRecall@30 is computed by lancer, ndeval stops at 20" in evaluation.notes
    with pytest.raises(AssertionError, match="20"):
        pyndeval.ndeval([tuple(qrel) for qrel in qrels], [("q", "d0", 1.0)], measures=["strec@30"])


class TestGrades:
    DIVERSE = (Qrel("q", "1", "a", 3), Qrel("q", "2", "a", 0), Qrel("q", "1", "b", 1))

    def test_the_highest_over_sub_topics_counts(self) -> None:
        """ir_measures takes the last of the file, here 0."""
        measures = parse_measures("P(rel=3)@1")
        lines = [ir_measures.Qrel(q, d, grade, topic) for q, topic, d, grade in self.DIVERSE]
        assert list(ir_measures.calc_aggregate(measures, lines, {"q": {"a": 1.0}}).values()) == [0.0]
        evaluation = evaluate({"q": ["a"]}, self.DIVERSE, measures)
        assert evaluation.mean == {"P(rel=3)@1": 1.0}
        assert "the grade of a document is its highest over the sub-topics, for P(rel=3)@1" in evaluation.notes

    def test_a_negative_one_is_unjudged(self) -> None:
        """ir_measures counts it as judged."""
        qrels = [Qrel("q", "0", "a", 1), Qrel("q", "0", "b", -1)]
        measures = parse_measures("Judged@2")
        lines = [ir_measures.Qrel(q, d, grade) for q, _, d, grade in qrels]
        assert list(ir_measures.calc_aggregate(measures, lines, {"q": {"a": 2.0, "b": 1.0}}).values()) == [1.0]
        evaluation = evaluate({"q": ["a", "b"]}, qrels, measures)
        assert evaluation.mean == {"Judged@2": 0.5}
        assert evaluation.judged == {"judged@2": 0.5}
        assert "negative grades, read as unjudged: 1" in evaluation.notes

    def test_a_level_that_no_grade_reaches_is_said(self) -> None:
        evaluation = evaluate({"q": ["a"]}, self.DIVERSE, parse_measures("alpha_nDCG(rel=4)@5 Cov(tau=4)@5 P@5"))
        assert "alpha_nDCG(rel=4)@5 is 0: no grade reaches 4, the highest is 3" in evaluation.notes
        assert "Cov(tau=4)@5 is 0: no value reaches 4, the highest is 3" in evaluation.notes
        assert not any(note.startswith("P@5 is 0") for note in evaluation.notes)

    def test_a_count_needs_no_grade(self) -> None:
        evaluation = evaluate({"q": ["a"]}, [Qrel("q", "0", "a", 0)], parse_measures("Judged@5 NumQ NumRet nDCG@5"))
        assert evaluation.mean == {"Judged@5": 1.0, "NumQ": 1.0, "NumRet": 1.0, "nDCG@5": 0.0}
        assert evaluation.notes == ("nDCG@5 is 0: no grade reaches 1, the highest is 0",)

    def test_qrels_without_sub_topics_are_said(self) -> None:
        evaluation = evaluate({"q1": ["a"]}, QRELS, parse_measures("StRecall@5 P@5"))
        assert "no query has more than one sub-topic, for StRecall@5" in evaluation.notes


class TestCoverage:
    RATINGS = RatedPairs({"q1": {"s1": {"a": 4}, "s2": {"a": 1, "c": 2}, "s3": {}}}, Scale.rating, missing=3)
    PROBABILITIES = RatedPairs(
        {"q1": {"s1": {"a": float(np.float32(0.3)), "b": 0.1}, "s2": {"a": 0.29}}, "q2": {}}, Scale.probability
    )

    def test_from_ratings_beside_qrels(self) -> None:
        names = "Cov@2 Cov(of=all)@2 P@2"
        evaluation = evaluate({"q1": ["a", "b"]}, QRELS, parse_measures(names), ratings=self.RATINGS)
        assert evaluation.per_query["Cov@2"] == {"q1": 1.0, "q2": 0.0}
        assert evaluation.per_query["Cov(of='all')@2"] == {"q1": pytest.approx(1 / 3), "q2": 0.0}
        assert evaluation.per_query["P@2"] == {"q1": 0.5, "q2": 0.0}
        assert "cells of the ratings without a value, which cover nothing: 3" in evaluation.notes

    def test_beside_it_stands_how_many_documents_have_a_rating(self) -> None:
        evaluation = evaluate({"q1": ["a", "b"]}, QRELS, parse_measures("Cov@2 P@2"), ratings=self.RATINGS)
        assert evaluation.judged == {"rated@2": 0.25, "judged@2": 0.5}
        assert (evaluation.judged_for("Cov@2"), evaluation.judged_for("P@2")) == (0.25, 0.5)

    def test_a_query_without_ratings_is_said(self) -> None:
        rankings = {"q1": ["a"], "q2": ["a"]}
        evaluation = evaluate(rankings, QRELS, parse_measures("Cov@1"), ratings=self.RATINGS)
        assert "queries without ratings, Cov counted 0: 1 (q2)" in evaluation.notes

    def test_ratings_alone_are_the_judgments(self) -> None:
        measures = parse_measures("Cov@1 alpha_nDCG(rel=4)@1 P(rel=4)@1 Judged@2")
        evaluation = evaluate({"q1": ["a", "x"]}, None, measures, ratings=self.RATINGS)
        assert list(evaluation.mean.values()) == [1.0, 1.0, 1.0, 0.5]
        assert evaluation.judged == {"judged@1": 1.0, "judged@2": 0.5}

    def test_from_probabilities_tau_is_one(self) -> None:
        measures = parse_measures("Cov(tau=0.3,of=all)@1 Judged@2")
        evaluation = evaluate({"q1": ["a", "b"], "q2": ["x"]}, None, measures, ratings=self.PROBABILITIES)
        assert evaluation.per_query["Cov(tau=0.3,of='all')@1"] == {"q1": 0.5, "q2": 0.0}  # a stored .3 reaches .3
        assert evaluation.judged == {"judged@1": 0.5, "judged@2": 0.5}
        assert "queries without ratings, Cov counted 0: 1 (q2)" in evaluation.notes

    def test_a_rating_tau_on_probabilities_is_a_usage_error(self) -> None:
        message = (
            r"measure 'Cov\(of='all'\)@5': tau 3 is above the maximum of the scale 'probability' \(0 to 1\) of the "
            r"ratings; give it in that scale, for example Cov\(tau=0.5,of='all'\)@5"
        )
        with pytest.raises(UsageError, match=message):
            evaluate({"q1": ["a"]}, QRELS, parse_measures("Cov(of=all)@5"), ratings=self.PROBABILITIES)

    def test_probabilities_are_no_judgments(self) -> None:
        measures = parse_measures("Cov(tau=0.3)@5 nDCG@10 StRecall@5")
        with pytest.raises(UsageError, match="probabilities are no judgments: nDCG@10, StRecall@5 cannot be computed"):
            evaluate({"q1": ["a"]}, None, measures, ratings=self.PROBABILITIES)

    def test_neither_qrels_nor_ratings(self) -> None:
        with pytest.raises(UsageError, match="neither qrels nor ratings"):
            evaluate({"q1": ["a"]}, None, parse_measures("P@1"))

    def test_from_diversity_qrels_it_is_sub_topic_recall(self) -> None:
        qrels = [Qrel("q", str(t), f"d{d}", (t * d) % 6) for t in range(1, 8) for d in range(20)]
        ranking = [f"d{d}" for d in range(20)]
        evaluation = evaluate({"q": ranking}, qrels, parse_measures("Cov(tau=4)@3 StRecall(rel=4)@3"))
        assert evaluation.mean["Cov(tau=4)@3"] == pytest.approx(evaluation.mean["StRecall(rel=4)@3"])


def test_judged_stands_beside_every_cutoff() -> None:
    evaluation = evaluate({"q1": ["a", "x", "b"], "q2": ["x"]}, QRELS, parse_measures("P@1 nDCG@2 AP Judged@2"))
    assert evaluation.judged == {"judged@1": 0.5, "judged@2": 0.25, "judged": pytest.approx((2 / 3 + 0) / 2)}
    assert evaluation.judged_for("P@1") == 0.5
    assert evaluation.judged_for("nDCG@2") == evaluation.mean["Judged@2"]


def test_deep_rankings_keep_their_order() -> None:
    """Scores are whole numbers below 2^24: no two documents of a ranking are alike in float32."""
    ranking = [f"d{n}" for n in range(50_000)]
    qrels = [Qrel("q", "0", "d49999", 1)]
    assert mean({"q": ranking}, "RR", qrels) == pytest.approx(1 / 50_000)
