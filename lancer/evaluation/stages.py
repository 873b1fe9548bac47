"""What each stage of a funnel keeps and loses: recall, precision and their lift (papers/002, section 17.10.1).

A stage of a funnel passes some of its documents on. What it is measured by is the set of those, whatever their order:

- recall: share of a query's relevant documents that are in the set (ir_measures' `SetR`); a query without a relevant
  document counts 0, as in trec_eval.
- precision: share of the set that is relevant (`SetP`): the denominator is the number of documents that are there, not
  the number asked for. An empty set has precision 0. A document without a judgment is not relevant.
- sub-topic recall: share of a query's answered sub-topics that some document of the set answers (`StRecall` at the size
  of the set), where the judgments have sub-topics.

Each is the mean over all queries of the judgments; a query that a stage lacks counts 0. Relevant means a grade of at
least `rel`, the highest over sub-topics. A lift is the quotient of two means.

Recall can only fall along a funnel, and a smaller set gains precision by being smaller. What a stage's order is worth
is its precision beside that of an earlier order cut to as many documents: the lift at equal depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import ir_measures
from ir_measures import Measure

from lancer.errors import UsageError
from lancer.evaluation.alpha_ndcg import sub_topic_recall
from lancer.evaluation.judgments import Judgments
from lancer.evaluation.measures import evaluate
from lancer.evaluation.significance import confidence_interval
from lancer.formats.qrels import Qrel

RECALL: Final = "recall"
PRECISION: Final = "precision"
SUB_TOPIC_RECALL: Final = "sub-topic recall"

Orders = Mapping[str, Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One stage: per query the documents that go on after it, best first. `notes` are for people."""

    name: str
    orders: Orders
    notes: tuple[str, ...] = ()

    @classmethod
    def cut(cls, name: str, orders: Orders, kept: int | None, notes: Sequence[str] = ()) -> Step:
        """`kept` of each query's documents go on; None = all."""
        return cls(name=name, orders={q: list(order[:kept]) for q, order in orders.items()}, notes=tuple(notes))


@dataclass(frozen=True, kw_only=True)
class Lift:
    """A value over that of the stage before, and over that of the first stage; None: there is none, or it is 0."""

    before: float | None
    first: float | None


@dataclass(frozen=True, kw_only=True)
class StageValues:
    """One stage. `documents`: mean over queries. Keys of the others are the names of the measures, in order.

    `intervals` are 95 % bootstrap intervals over queries. `equal_depth`: its precision over that of the order before,
    and of the first stage's order, each cut for every query to as many documents as it keeps.
    """

    name: str
    documents: float
    means: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    lifts: dict[str, Lift]
    equal_depth: Lift
    notes: tuple[str, ...]


def evaluate_stages(
    steps: Sequence[Step], qrels: Sequence[Qrel], measures: Sequence[Measure] = (), *, rel: int = 1
) -> list[StageValues]:
    """Evaluates the stages of a funnel, in order; `measures` are computed on the documents that go on, in their order.

    UsageError: no stage, two of one name, `Cov`, which needs ratings. InputError: the first stage and the judgments
    have no query in common.
    """
    names = [step.name for step in steps]
    if not steps or len(set(names)) < len(names):
        raise UsageError(f"stages need names of their own; found: {', '.join(names) or 'none'}")
    judgments = Judgments(qrels)
    found: list[StageValues] = []
    for place, step in enumerate(steps):
        per_query, notes = _per_query(step, qrels, judgments, measures, rel, first=place == 0)
        means = {name: fmean(values.values()) for name, values in per_query.items()}
        earlier = (steps[place - 1], steps[0]) if place else ()
        at_depth = [_mean_precision(_as_long(other.orders, step.orders), judgments, rel) for other in earlier]
        lifts = {name: _lift(means, name, found) for name in means}
        found.append(
            StageValues(
                name=step.name,
                documents=fmean(len(step.orders.get(q, ())) for q in judgments.queries),
                means=means,
                intervals={name: confidence_interval(values) for name, values in per_query.items()},
                lifts=lifts,
                equal_depth=_quotients(means[PRECISION], at_depth),
                notes=(*step.notes, *notes),
            )
        )
    return found


def _per_query(
    step: Step, qrels: Sequence[Qrel], judgments: Judgments, measures: Sequence[Measure], rel: int, *, first: bool
) -> tuple[dict[str, dict[str, float]], tuple[str, ...]]:
    """Measure name -> query_id -> value, and what a reader should know."""
    recall, precision = ir_measures.SetR(rel=rel), ir_measures.SetP(rel=rel)
    asked = list({str(m): m for m in (recall, precision, *measures)}.values())
    if first or any(step.orders.get(query_id) for query_id in judgments.queries):
        evaluation = evaluate(step.orders, qrels, asked)
        values, notes = evaluation.per_query, evaluation.notes
    else:
        values = {str(measure): dict.fromkeys(judgments.queries, 0.0) for measure in asked}
        notes = ("no document of a judged query goes on",)
    own = {RECALL: values[str(recall)], PRECISION: values[str(precision)]}
    if judgments.diverse:
        own[SUB_TOPIC_RECALL] = {
            q: sub_topic_recall(order := step.orders.get(q, ()), judgments.answers(q, rel), cutoff=len(order))
            for q in judgments.queries
        }
    return own | {str(measure): values[str(measure)] for measure in measures}, notes


def _as_long(orders: Orders, model: Orders) -> dict[str, list[str]]:
    """`orders`, each cut to as many documents as `model` has for the query."""
    return {query_id: list(order[: len(model.get(query_id, ()))]) for query_id, order in orders.items()}


def _mean_precision(orders: Orders, judgments: Judgments, rel: int) -> float:
    return fmean(
        sum(judgments.grades[q].get(doc_id, 0) >= rel for doc_id in orders[q]) / len(orders[q])
        if orders.get(q)
        else 0.0
        for q in judgments.queries
    )


def _lift(means: Mapping[str, float], name: str, earlier: Sequence[StageValues]) -> Lift:
    others = (earlier[-1], earlier[0]) if earlier else ()
    return _quotients(means[name], [other.means[name] for other in others])


def _quotients(value: float, others: Sequence[float]) -> Lift:
    """Over the stage before and over the first one; none for the first stage."""
    before, first = [value / other if other else None for other in others] or (None, None)
    return Lift(before=before, first=first)
