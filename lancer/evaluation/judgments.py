"""Qrels sorted out once, the way the measures need them."""

from __future__ import annotations

from collections.abc import Iterable

from lancer.formats.qrels import Qrel


class Judgments:
    """Judgments by query. A negative grade means unjudged: it is counted in `negative` and otherwise left out.

    `queries`: all query ids, in the order of the qrels.
    `grades`: query_id -> doc_id -> grade, the highest over sub-topics.
    `sub_topics`: query_id -> sub-topic -> doc_id -> grade; sub-topics in the order of their first appearance in the
    whole file (pyndeval's order), also those that have only negative grades.
    `highest`: the highest grade of all. `diverse`: whether some query has more than one sub-topic.
    """

    def __init__(self, qrels: Iterable[Qrel], *, queries: Iterable[str] = ()) -> None:
        """`queries`: those that count even without a judgment."""
        rows = list(qrels)
        self.queries = tuple(dict.fromkeys([*queries, *(qrel.query_id for qrel in rows)]))
        places = {name: place for place, name in enumerate(dict.fromkeys(qrel.sub_topic for qrel in rows))}
        rows.sort(key=lambda qrel: places[qrel.sub_topic])
        self.grades: dict[str, dict[str, int]] = {query_id: {} for query_id in self.queries}
        self.sub_topics: dict[str, dict[str, dict[str, int]]] = {query_id: {} for query_id in self.queries}
        self.negative = 0
        self.highest = 0
        for query_id, sub_topic, doc_id, grade in rows:
            row = self.sub_topics[query_id].setdefault(sub_topic, {})
            if grade < 0:
                self.negative += 1
                continue
            row[doc_id] = grade
            grades = self.grades[query_id]
            grades[doc_id] = max(grade, grades.get(doc_id, 0))
            self.highest = max(self.highest, grade)

    @property
    def diverse(self) -> bool:
        """Whether some query has more than one sub-topic."""
        return any(len(rows) > 1 for rows in self.sub_topics.values())

    def answers(self, query_id: str, rel: int) -> dict[str, set[str]]:
        """Sub-topic -> documents of a grade of at least `rel`, for one query."""
        rows = self.sub_topics[query_id].items()
        return {sub_topic: {doc_id for doc_id, grade in row.items() if grade >= rel} for sub_topic, row in rows}
