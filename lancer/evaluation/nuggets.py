"""Nugget measures of answers, from assignments: what share of a topic's nuggets the answer supports.

TREC RAG's measures (Pradeep et al., "The Great Nugget Recall", SIGIR 2025). Strict measures count `support` as 1; the
others also count `partial_support` as .5. Vital measures look at vital nuggets, all-measures at every nugget; weighted
ones weigh vital 1 and okay .5.

On the 76 topics of `rag24-nuggets` all six equal the published values. The weighted two do so by one rule: a nugget
whose importance is neither vital nor okay weighs 0 there, in numerator and denominator; the all-measures count it. The
language model labelled 8 of the 1,474 nuggets so, on two topics; weighing them like okay nuggets gives topic
2024-224013 .4054 instead of .4032 and 2024-44329 .2273 instead of .2500 (weighted_score). An unknown assignment is no
support (11 nuggets on two other topics).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from lancer.errors import InputError, UsageError, nearest
from lancer.evaluation.measures import Evaluation
from lancer.formats.nuggets import Assignment, Importance, Nugget, Topic, unknown_words

WITHOUT_VITAL: Final = ("zero", "skip")

_STRICT: Final = {Assignment.support.value: 1.0}
_PARTIAL: Final = _STRICT | {Assignment.partial_support.value: 0.5}
_VITAL: Final = {Importance.vital.value: 1.0}
_WEIGHTED: Final = _VITAL | {Importance.okay.value: 0.5}

# Name -> what an assignment is worth, what an importance weighs (None: 1, whatever it is).
MEASURES: Final[dict[str, tuple[dict[str, float], dict[str, float] | None]]] = {
    "strict_vital_score": (_STRICT, _VITAL),
    "strict_all_score": (_STRICT, None),
    "vital_score": (_PARTIAL, _VITAL),
    "all_score": (_PARTIAL, None),
    "strict_weighted_score": (_STRICT, _WEIGHTED),
    "weighted_score": (_PARTIAL, _WEIGHTED),
}


def evaluate_nuggets(topics: Iterable[Topic], *, without_vital: str = "zero") -> Evaluation:
    """All six measures of one system's answers.

    `without_vital` is what becomes of a topic that has no nugget of any weight for a measure, above all one without
    vital nuggets: it counts "zero" (as TREC's own script has it), or that measure leaves it out, "skip". UsageError:
    another word. InputError: no topic, a nugget without an assignment, nothing left to take the mean of.
    """
    if without_vital not in WITHOUT_VITAL:
        raise UsageError(f"without_vital {without_vital!r} does not exist{nearest(without_vital, WITHOUT_VITAL)}")
    topics = list(topics)
    if not topics:
        raise InputError("there is no topic to evaluate")
    per_query: dict[str, dict[str, float]] = {name: {} for name in MEASURES}
    empty: dict[str, list[str]] = {}
    for topic in topics:
        for name, value in nugget_scores(topic).items():
            if value is None:
                empty.setdefault(topic.query_id, []).append(name)
                if without_vital == "skip":
                    continue
            per_query[name][topic.query_id] = value or 0.0
    left_out = [name for name, row in per_query.items() if not row]
    if left_out:
        raise InputError(f"no topic has a nugget that counts for {', '.join(left_out)}")
    done = "counted 0" if without_vital == "zero" else "left out of the measures concerned"
    some = f" ({', '.join(list(empty)[:5])}{', ...' if len(empty) > 5 else ''})" if empty else ""
    notes = [f"topics without vital nuggets, {done} (policy {without_vital}): {len(empty)}{some}"]
    unknown = unknown_words(topics)
    if unknown:
        words = ", ".join(f"{word} {count}" for word, count in unknown.most_common(5))
        weights = "weight 0 in the weighted measures"
        notes.append(f"nuggets with an unknown importance ({weights}) or assignment (no support): {words}")
    return Evaluation(
        per_query=per_query,
        mean={name: math.fsum(row.values()) / len(row) for name, row in per_query.items()},
        judged={},
        judged_by={},
        queries_missing=(),
        queries_ignored=(),
        notes=tuple(notes),
    )


def nugget_scores(topic: Topic) -> Mapping[str, float | None]:
    """Measure name -> value in 0..1 for one topic; None where no nugget has a weight. InputError: no assignment."""
    return {name: _score(topic, worth, weights) for name, (worth, weights) in MEASURES.items()}


def _score(topic: Topic, worth: Mapping[str, float], weights: Mapping[str, float] | None) -> float | None:
    weighed = [(1.0 if weights is None else weights.get(n.importance, 0.0), n) for n in topic.nuggets]
    total = math.fsum(weight for weight, _ in weighed)
    return math.fsum(weight * worth.get(_assignment(topic, n), 0.0) for weight, n in weighed) / total if total else None


def _assignment(topic: Topic, nugget: Nugget) -> str:
    if nugget.assignment is None:
        raise InputError(f"topic {topic.query_id!r} has a nugget without an assignment: {nugget.text[:60]!r}")
    return nugget.assignment
