"""Rankings and judgments -> an evaluation: ir_measures computes, this module decides what it is given.

Names are ir_measures' own (`alpha_nDCG@10`, `P(rel=2)@10`), and `Cov@10` (`lancer.evaluation.coverage`). A query of the
qrels that the run lacks counts 0; one only in the run is ignored; both are reported.

Deliberate differences to the evaluators underneath, each with a test:

- Ties. The ranking's own order is final (`ties="lancer"`: score, then input rank, then line order). trec_eval breaks
  ties by document id descending, pyndeval by document id ascending; NIST's ndeval goes by the rank column and, with
  `-traditional`, does as trec_eval. `ties="trec_eval"` and `ties="pyndeval"` reproduce those orders.
- Near-ties. Scores that differ in float64 only are ties to trec_eval 9 (float32), not here. The evaluators are given
  the scores n, n - 1, ..., 1, which are exact in float32.
- Repeated documents keep their first place; trec_eval refuses them, pyndeval counts them twice.
- Interleaved queries are put together; pyndeval keeps only the last block of lines of a query.
- Cutoffs above 20, which pyndeval refuses: alpha_nDCG and StRecall come from `lancer.evaluation.alpha_ndcg`.
- Recall points. IPrec rounds them to numbers of documents as trec_eval 10 does (`lancer.evaluation.interpolated`);
  pytrec_eval has trec_eval 9.
- Sub-topics. Measures without sub-topics (nDCG, P, AP ...) on diversity qrels use a document's highest grade over them;
  ir_measures takes the last one of the file.
- Negative grades mean unjudged, for `Judged` too; ir_measures counts them as judged.
- Missing queries count 0; trec_eval leaves them out unless called with -c.
- Several groups of parameters in one call (`lancer.evaluation.compute`), where ir_measures answers 0.0 silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from ir_measures import Measure

from lancer.errors import InputError, UsageError, nearest
from lancer.evaluation.compute import Orders, compute, judged_share
from lancer.evaluation.coverage import Cov
from lancer.evaluation.judgments import Judgments
from lancer.evaluation.names import DIVERSITY, NDEVAL_DEPTH, cutoff_of, parse_measures
from lancer.evaluation.rated import RatedPairs
from lancer.formats.qrels import Qrel

__all__ = ["TIES", "Evaluation", "evaluate", "order_of", "parse_measures"]

TIES: Final = ("lancer", "trec_eval", "pyndeval")

Ranking = Sequence[str] | Sequence[tuple[str, float]]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The measures of one run. Keys of `per_query` and `mean` are measure names; every query of the qrels has a value.

    `mean` is the mean over those queries (the sum for NumQ, NumRel and NumRet, as ir_measures aggregates them).
    `judged` is the mean share of judged documents in the top k, for the cutoff of each measure: `judged@10`, `judged`
    for the whole ranking, and `rated@10` for a Cov that is computed from ratings beside the qrels. `judged_by` says for
    each measure which of them stands beside it. Both are empty for measures of answers.
    `notes` says what was normalised, counted as 0 or ignored, with counts.
    """

    per_query: dict[str, dict[str, float]]
    mean: dict[str, float]
    judged: dict[str, float]
    judged_by: dict[str, str]
    queries_missing: tuple[str, ...]  # in the qrels, not in the run: they count 0
    queries_ignored: tuple[str, ...]  # in the run, not in the qrels
    notes: tuple[str, ...]

    def judged_for(self, measure: str) -> float | None:
        """The share of judged documents that the measure looked at; None for a measure of answers."""
        return self.judged[self.judged_by[measure]] if measure in self.judged_by else None


def evaluate(
    rankings: Mapping[str, Ranking],
    qrels: Sequence[Qrel] | None,
    measures: Sequence[Measure],
    *,
    ties: str = "lancer",
    ratings: RatedPairs | None = None,
) -> Evaluation:
    """Evaluates one run.

    `rankings`: query_id -> documents best first, as ids or as (doc_id, score), e.g. `Run.rankings`; scores matter only
    to other `ties` than "lancer". `qrels` None = the ratings are the judgments. `ratings`: what Cov is computed from;
    None = the qrels.
    InputError: run and judgments share no query. UsageError: unknown `ties`; other ties than lancer's without scores;
    neither qrels nor ratings; a measure that cannot be computed from the ratings.
    """
    judgments, rated = _judgments(qrels, ratings, measures)
    notes: list[str] = []
    orders = _orders(rankings, ties, notes)
    shared = {query_id: orders[query_id] for query_id in judgments.queries if query_id in orders}
    if not shared:
        found = f"run: {_some(orders)}; {'ratings' if qrels is None else 'qrels'}: {_some(judgments.queries)}"
        raise InputError(f"the run and the judgments have no query in common ({found})")
    missing = tuple(query_id for query_id in judgments.queries if query_id not in shared)
    ignored = tuple(query_id for query_id in orders if query_id not in shared)
    notes += _counted("queries of the judgments that the run lacks, counted 0", missing)
    notes += _counted("queries of the run that the judgments lack, ignored", ignored)

    covs = [measure for measure in measures if measure.NAME == Cov.NAME]
    others = [measure for measure in measures if measure.NAME != Cov.NAME]
    values = compute(shared, judgments, others)
    notes += _about(judgments, others)
    for measure in covs:
        values[str(measure)] = {q: rated.curve(measure, q, order, measure["cutoff"])[-1] for q, order in shared.items()}
    notes += _about_covs(rated, covs, shared)
    per_query = {
        str(m): {query_id: values[str(m)].get(query_id, 0.0) for query_id in judgments.queries} for m in measures
    }
    judged, judged_by = _judged(shared, judgments, None if ratings is None or qrels is None else rated, measures)
    return Evaluation(
        per_query=per_query,
        mean={str(measure): _aggregate(measure, per_query[str(measure)]) for measure in measures},
        judged=judged,
        judged_by=judged_by,
        queries_missing=missing,
        queries_ignored=ignored,
        notes=tuple(dict.fromkeys(notes)),
    )


def order_of(ranking: Ranking, ties: str = "lancer") -> list[str]:
    """The documents of one ranking, each once, in the order that `ties` names.

    UsageError: `ties` is unknown, or needs scores and there are none.
    """
    if ties not in TIES:
        raise UsageError(f"ties {ties!r} does not exist{nearest(ties, TIES)}")
    scores: dict[str, float | None] = {}
    for item in ranking:
        doc_id, score = (item, None) if isinstance(item, str) else item
        scores.setdefault(doc_id, score)
    if ties == "lancer":
        return list(scores)
    if None in scores.values():
        raise UsageError(f"ties {ties!r} needs the scores of the run, not only its order")
    pairs = [(doc_id, float(score or 0.0)) for doc_id, score in scores.items()]
    if ties == "trec_eval":
        pairs.sort(key=lambda pair: (np.float32(pair[1]), pair[0]), reverse=True)
    else:
        pairs.sort(key=lambda pair: (-pair[1], pair[0]))
    return [doc_id for doc_id, _ in pairs]


def _orders(rankings: Mapping[str, Ranking], ties: str, notes: list[str]) -> dict[str, list[str]]:
    orders = {query_id: order_of(ranking, ties) for query_id, ranking in rankings.items() if ranking}
    repeated = sum(len(rankings[query_id]) - len(order) for query_id, order in orders.items())
    if repeated:
        notes.append(f"repeated documents, first place kept: {repeated}")
    if ties != "lancer":
        moved = [query_id for query_id in orders if orders[query_id] != order_of(rankings[query_id])]
        notes.append(f"ties as in {ties}; queries whose order that changes: {len(moved)}")
    return orders


def _judgments(
    qrels: Sequence[Qrel] | None, ratings: RatedPairs | None, measures: Sequence[Measure]
) -> tuple[Judgments, RatedPairs]:
    if ratings is not None:
        ratings.check(measures)
        return (ratings.judgments(measures) if qrels is None else Judgments(qrels)), ratings
    if qrels is None:
        raise UsageError("neither qrels nor ratings are given: there is nothing to evaluate against")
    judgments = Judgments(qrels)
    return judgments, RatedPairs.of_judgments(judgments)


def _judged(
    orders: Orders, judgments: Judgments, rated: RatedPairs | None, measures: Sequence[Measure]
) -> tuple[dict[str, float], dict[str, str]]:
    """Label -> share, measure -> label; `rated` where Cov has a source of its own."""
    shares: dict[str, float] = {}
    labels = {}
    for measure in measures:
        cutoff = cutoff_of(measure)
        own = rated if measure.NAME == Cov.NAME else None
        label = ("judged" if own is None else "rated") + ("" if cutoff is None else f"@{cutoff}")
        labels[str(measure)] = label
        if label not in shares:
            known = judgments.grades if own is None else {query_id: own.documents(query_id) for query_id in orders}
            shares[label] = judged_share(orders, known, cutoff, len(judgments.queries))
    return shares, labels


def _about(judgments: Judgments, measures: Sequence[Measure]) -> list[str]:
    """What a reader should know about these measures on these judgments."""
    notes = []
    if judgments.negative:
        notes.append(f"negative grades, read as unjudged: {judgments.negative}")
    plain = [str(m) for m in measures if m.NAME not in DIVERSITY and m.NAME not in ("Judged", "NumQ", "NumRet")]
    by_topic = [str(m) for m in measures if m.NAME in DIVERSITY]
    if judgments.diverse and plain:
        notes.append(f"the grade of a document is its highest over the sub-topics, for {', '.join(plain)}")
    if not judgments.diverse and by_topic:
        notes.append(f"no query has more than one sub-topic, for {', '.join(by_topic)}")
    for measure in measures:
        level = measure["rel"] if "rel" in measure.SUPPORTED_PARAMS else 1
        if isinstance(level, int) and level > judgments.highest and measure.NAME not in ("Judged", "NumQ"):
            notes.append(f"{measure} is 0: no grade reaches {level}, the highest is {judgments.highest}")
        if measure.NAME in DIVERSITY and (cutoff_of(measure) or 0) > NDEVAL_DEPTH:
            notes.append(f"{measure} is computed by lancer, ndeval stops at {NDEVAL_DEPTH}")
    return notes


def _about_covs(rated: RatedPairs, covs: Sequence[Measure], orders: Orders) -> list[str]:
    if not covs:
        return []
    notes = []
    if rated.missing:
        notes.append(f"cells of the ratings without a value, which cover nothing: {rated.missing}")
    if not rated.diverse:
        notes.append(f"no query has more than one sub-question, for {', '.join(map(str, covs))}")
    for measure in covs:
        if measure["tau"] > rated.highest:
            notes.append(f"{measure} is 0: no value reaches {measure['tau']}, the highest is {rated.highest:g}")
    return notes + _counted("queries without ratings, Cov counted 0", [q for q in orders if not rated.cells.get(q)])


def _aggregate(measure: Measure, values: Mapping[str, float]) -> float:
    aggregator = measure.aggregator()
    for value in values.values():
        aggregator.add(value)
    return float(aggregator.result())


def _counted(what: str, query_ids: Sequence[str]) -> list[str]:
    return [f"{what}: {len(query_ids)} ({_some(query_ids)})"] if query_ids else []


def _some(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
