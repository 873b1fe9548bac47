"""Orders and judgments -> values per query: ir_measures, called so that it cannot go wrong, and our own code beside it.

ir_measures 0.4.3 reuses a spent iterator when one call holds diversity measures with different (rel, alpha,
judged_only): the second group gets 0.0 silently. It also applies the `gains` of one nDCG to others of the same call,
and fails on `judged_only` of diversity measures. So: one call per group of equal parameters, and judged documents are
chosen here.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Container, Mapping, Sequence

import ir_measures
from ir_measures import Measure

from lancer.evaluation.alpha_ndcg import alpha_ndcg, sub_topic_recall
from lancer.evaluation.interpolated import interpolated_precision
from lancer.evaluation.judgments import Judgments
from lancer.evaluation.names import DIVERSITY, EVALUATORS, NDEVAL_DEPTH, cutoff_of
from lancer.formats.runs import scores_for

Orders = Mapping[str, Sequence[str]]
Values = dict[str, dict[str, float]]


def compute(orders: Orders, judgments: Judgments, measures: Sequence[Measure]) -> Values:
    """Measure name -> query_id -> value, for measures other than Cov.

    `orders`: documents best first, each once, only queries of the judgments. A query is absent where a measure gives it
    no value.
    """
    values: Values = {}
    groups: dict[tuple[object, ...], list[Measure]] = {}
    for measure in measures:
        if measure.NAME in ("NumQ", "NumRel"):  # they describe the qrels: also of queries that the run lacks
            values[str(measure)] = {query_id: _count(judgments, query_id, measure) for query_id in judgments.queries}
        elif measure.NAME == "IPrec" or (measure.NAME in DIVERSITY and (cutoff_of(measure) or 0) > NDEVAL_DEPTH):
            values[str(measure)] = _own(orders, judgments, measure)
        else:
            fixed = sorted((name, repr(value)) for name, value in measure.params.items() if name != measure.AT_PARAM)
            groups.setdefault((measure.NAME in DIVERSITY, *fixed), []).append(measure)
    for (diversity, *_), group in groups.items():
        values |= _diversity(orders, judgments, group) if diversity else _plain(orders, judgments, group)
    return values


def judged_only(orders: Orders, judgments: Judgments) -> dict[str, list[str]]:
    """The orders without the documents that have no judgment."""
    return {
        query_id: [doc_id for doc_id in order if doc_id in judgments.grades[query_id]]
        for query_id, order in orders.items()
    }


def judged_share(orders: Orders, known: Mapping[str, Container[str]], cutoff: int | None, queries: int) -> float:
    """Mean over `queries` of the share of known documents in the top `cutoff`, or in as many as there are.

    `known`: query_id -> the documents that have a judgment.
    """
    shares = []
    for query_id, order in orders.items():
        top = order[:cutoff]
        shares.append(sum(doc_id in known[query_id] for doc_id in top) / len(top))
    return sum(shares) / queries


def _count(judgments: Judgments, query_id: str, measure: Measure) -> float:
    if measure.NAME == "NumQ":
        return 1.0
    return float(sum(grade >= measure["rel"] for grade in judgments.grades[query_id].values()))


def _own(orders: Orders, judgments: Judgments, measure: Measure) -> dict[str, float]:
    if measure.params.get("judged_only"):
        orders = judged_only(orders, judgments)
    return {query_id: _own_value(order, query_id, judgments, measure) for query_id, order in orders.items()}


def _own_value(order: Sequence[str], query_id: str, judgments: Judgments, measure: Measure) -> float:
    if measure.NAME == "IPrec":
        relevant = {doc_id for doc_id, grade in judgments.grades[query_id].items() if grade >= measure["rel"]}
        return interpolated_precision(order, relevant, recall=measure["recall"])
    answers, cutoff = judgments.answers(query_id, measure["rel"]), measure.params["cutoff"]
    if measure.NAME == "StRecall":
        return sub_topic_recall(order, answers, cutoff=cutoff)
    return alpha_ndcg(order, answers, cutoff=cutoff, alpha=measure["alpha"])


def _diversity(orders: Orders, judgments: Judgments, measures: Sequence[Measure]) -> Values:
    asked = {}
    for measure in measures:
        parameters = {name: value for name, value in measure.params.items() if name != "judged_only"}
        asked[type(measure)(**parameters)] = str(measure)
    if measures[0].params.get("judged_only"):
        orders = judged_only(orders, judgments)
    qrels = [
        ir_measures.Qrel(query_id, doc_id, grade, sub_topic)
        for query_id in orders
        for sub_topic, row in judgments.sub_topics[query_id].items()
        for doc_id, grade in row.items()
    ]
    return _call(asked, qrels, orders)


def _plain(orders: Orders, judgments: Judgments, measures: Sequence[Measure]) -> Values:
    qrels = [
        ir_measures.Qrel(query_id, doc_id, grade)
        for query_id in orders
        for doc_id, grade in judgments.grades[query_id].items()
    ]
    return _call({measure: str(measure) for measure in measures}, qrels, orders)


def _call(asked: Mapping[Measure, str], qrels: Sequence[ir_measures.Qrel], orders: Orders) -> Values:
    run = {query_id: dict(zip(order, scores_for(len(order)), strict=True)) for query_id, order in orders.items()}
    values: Values = {name: {} for name in asked.values()}
    with contextlib.redirect_stderr(io.StringIO()):  # pyndeval's word on single sub-topics: `evaluate` has a note on it
        for metric in EVALUATORS.iter_calc(list(asked), qrels, run):
            values[asked[metric.measure]][metric.query_id] = float(metric.value)
    return values
