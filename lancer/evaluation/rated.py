"""What Cov is computed from: a rating matrix per query, a run's own probabilities, or the qrels themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from ir_measures import Measure

from lancer.errors import InputError, UsageError
from lancer.evaluation.coverage import Cov, coverage_curve
from lancer.evaluation.judgments import Judgments
from lancer.formats.coverage import StoredMatrix
from lancer.formats.qrels import Qrel
from lancer.schema import Scale


@dataclass(frozen=True)
class RatedPairs:
    """`cells`: query_id -> sub-question -> doc_id -> value, every sub-question, only cells that have a value.

    `scale` is None where the values are grades of qrels. `missing` counts the cells without a value.
    """

    cells: Mapping[str, Mapping[str, Mapping[str, float]]]
    scale: Scale | None = None
    missing: int = 0

    @classmethod
    def of_matrices(cls, matrices: Iterable[StoredMatrix]) -> RatedPairs:
        """InputError: ratings and probabilities together."""
        cells: dict[str, dict[str, dict[str, float]]] = {}
        scales: set[Scale] = set()
        missing = 0
        for matrix in matrices:
            columns: dict[str, dict[str, float]] = {name: {} for name in matrix.sub_question_ids}
            behind = set(matrix.behind)
            for doc_id, row in zip(matrix.doc_ids, matrix.values, strict=True):
                if doc_id in behind:
                    continue
                for name, value in zip(matrix.sub_question_ids, row, strict=True):
                    if value is None:
                        missing += 1
                    else:
                        columns[name][doc_id] = value
                        scales.add(matrix.scale)
            cells[matrix.query_id] = columns
        if len(scales) > 1:
            raise InputError("the matrices hold ratings and probabilities, which have no scale in common")
        return cls(cells, next(iter(scales), Scale.rating), missing)

    @classmethod
    def of_judgments(cls, judgments: Judgments) -> RatedPairs:
        """The sub-topics of qrels as sub-questions."""
        return cls(judgments.sub_topics)

    @cached_property
    def highest(self) -> float:
        """The highest value of all; 0 without any."""
        rows = (row for columns in self.cells.values() for row in columns.values())
        return max((value for row in rows for value in row.values()), default=0)

    @property
    def diverse(self) -> bool:
        """Whether some query has more than one sub-question."""
        return any(len(columns) > 1 for columns in self.cells.values())

    def documents(self, query_id: str) -> Set[str]:
        """The documents of a query that have a value for some sub-question."""
        return set[str]().union(*self.cells.get(query_id, {}).values())

    def curve(self, measure: Measure, query_id: str, ranking: Sequence[str], depth: int) -> list[float]:
        """Cov@1 ... Cov@depth of one query, by the tau and the denominator of a Cov measure."""
        tau = float(measure["tau"])
        if self.scale is Scale.probability:
            tau = float(np.float32(tau))  # as probabilities are stored: a stored .3 reaches .3
        return coverage_curve(ranking, self.cells.get(query_id, {}), tau=tau, of=measure["of"], depth=depth)

    def check(self, measures: Sequence[Measure]) -> None:
        """UsageError: a Cov whose tau is above the scale, which nothing could reach."""
        for measure in measures:
            if self.scale is not None and measure.NAME == Cov.NAME and measure["tau"] > self.scale.maximum:
                example = Cov(tau=self.scale.maximum / 2, of=measure["of"], cutoff=measure["cutoff"])
                raise UsageError(
                    f"measure '{measure}': tau {measure['tau']} is above the maximum of the scale {self.scale.value!r} "
                    f"(0 to {self.scale.maximum:g}) of the ratings; give it in that scale, for example {example}"
                )

    def judgments(self, measures: Sequence[Measure]) -> Judgments:
        """The ratings in place of qrels, for these measures; every query of the matrices is in them.

        UsageError: the values are probabilities, which tell what is judged but are no grades.
        """
        graded = [str(measure) for measure in measures if measure.NAME not in (Cov.NAME, "Judged")]
        if self.scale is Scale.probability and graded:
            raise UsageError(f"probabilities are no judgments: {', '.join(graded)} cannot be computed without qrels")
        return Judgments(
            (
                Qrel(query_id, name, doc_id, int(value))
                for query_id, columns in self.cells.items()
                for name, row in columns.items()
                for doc_id, value in row.items()
            ),
            queries=self.cells,
        )
