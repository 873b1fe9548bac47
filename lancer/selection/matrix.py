"""What a selector gets, the coverage matrix of one query, and what it gives back.

Rows are candidates in the order in which ties are broken, the first stage's unless there was reranking; columns are
sub-questions. The numbers are ratings (0 to 5) or probabilities (0 to 1) and the matrix says which; a missing number
counts as 0 and is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from lancer.errors import InputError
from lancer.schema import Scale

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

OPTIONAL_FIELDS: Final = {
    "second_order": "a second order of the candidates, for example the bi-encoder's (`lancer select --second-order`)",
    "token_counts": "the number of tokens of each candidate (`lancer select --token-counts`)",
}


@dataclass(frozen=True, eq=False)
class CoverageMatrix:
    """The judged or estimated pairs of one query; InputError where a shape or a value does not fit.

    values: (candidates, sub-questions) float64; NaN or None = missing. Nested lists are accepted.
    scale: what the values are.
    second_order: rows, best first, by another ranker; `ties=second` and `rest=second` need it.
    token_counts: (candidates,) whole numbers; `budget` needs them.
    first_order: rows, best first, by the first stage; None = as they are, which is so unless reranking moved them.
    first_stage_scores: (candidates,); `mmr` and `xquad` use them, and the first-stage rank where they are absent.
    embeddings: (candidates, dimensions); `mmr` uses them, and the matrix rows where they are absent.
    """

    values: FloatArray
    scale: Scale
    second_order: IntArray | None = None
    token_counts: IntArray | None = None
    first_order: IntArray | None = None
    first_stage_scores: FloatArray | None = None
    embeddings: FloatArray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", Scale(self.scale))
        object.__setattr__(self, "values", _table(self.values, "values"))
        _check_range(self.values, self.scale)
        for name in ("second_order", "first_order", "token_counts", "first_stage_scores"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _column(getattr(self, name), name, len(self.values)))
        for name in ("second_order", "first_order"):
            rows = getattr(self, name)
            if rows is not None and sorted(rows.tolist()) != list(range(len(self.values))):
                raise InputError("must hold every row of the matrix exactly once", field=name)
        if self.token_counts is not None and self.token_counts.min(initial=0) < 0:
            raise InputError(f"found {self.token_counts.min()}, a count is at least 0", field="token_counts")
        if self.embeddings is not None:
            object.__setattr__(self, "embeddings", _table(self.embeddings, "embeddings"))
            if len(self.embeddings) != len(self.values) or not np.isfinite(self.embeddings).all():
                raise InputError(f"must be {len(self.values)} rows of finite numbers", field="embeddings")

    @property
    def candidates(self) -> int:
        """Number of rows."""
        return len(self.values)

    @property
    def sub_questions(self) -> int:
        """Number of columns."""
        return int(self.values.shape[1])

    @property
    def missing(self) -> int:
        """Number of cells without a value; they count as 0."""
        return int(np.count_nonzero(np.isnan(self.values)))

    @cached_property
    def filled(self) -> FloatArray:
        """The values with 0 for missing ones."""
        return np.where(np.isnan(self.values), 0.0, self.values)

    @cached_property
    def unit(self) -> FloatArray:
        """The values on 0 to 1: probabilities as they are, ratings divided by 5."""
        return self.filled / self.scale.maximum

    def covered(self, tau: float, *, strict: bool = False) -> BoolArray:
        """(candidates, sub-questions): value >= tau, or > tau if strict. A missing value and a 0 never cover.

        Values are stored as float32, so tau is rounded alike: a stored .3 is not above .3, and reaches .3.
        """
        values, tau = self.values.astype(np.float32).astype(np.float64), float(np.float32(tau))
        return values > tau if strict else (values >= tau) & (values > 0.0)


@dataclass(frozen=True)
class Selection:
    """A complete ranking of the rows and why.

    order: rows, best first, each exactly once.
    covers: beside `order`: the columns that the document is the first to cover.
    uncovered: the columns that no candidate covers.
    """

    order: list[int]
    covers: list[list[int]]
    uncovered: list[int]

    @classmethod
    def explain(cls, order: IntArray, covered: BoolArray) -> Selection:
        """Reads from `covered` (candidates, sub-questions) what each document of the order newly covers."""
        covers: list[list[int]] = [[] for _ in range(len(order))]
        uncovered: list[int] = []
        if covered.size == 0:
            return cls(order.tolist(), covers, list(range(covered.shape[1])))
        ranked = covered[order]
        answered: BoolArray = np.logical_or.reduce(ranked, axis=0)
        for column, position in enumerate(ranked.argmax(axis=0).tolist()):
            if answered[column]:
                covers[position].append(column)
            else:
                uncovered.append(column)
        return cls(order.tolist(), covers, uncovered)


def _table(values: object, name: str) -> FloatArray:
    try:
        table = np.ascontiguousarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("must be rows of equal length, of numbers or nulls", field=name) from None
    if table.shape == (0,):
        table = table.reshape(0, 0)
    if table.ndim != 2:
        raise InputError(f"must be a table of two dimensions, found {table.ndim}", field=name)
    return table


def _column(values: Sequence[float] | npt.NDArray[np.float64], name: str, length: int) -> FloatArray | IntArray:
    try:
        column = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError("must be numbers", field=name) from None
    if column.shape != (length,) or not np.isfinite(column).all():
        raise InputError(f"must be {length} finite numbers, one per candidate", field=name)
    if name == "first_stage_scores":
        return column
    if (column != np.floor(column)).any():
        raise InputError("must be whole numbers", field=name)
    return column.astype(np.int64)


def _check_range(values: FloatArray, scale: Scale) -> None:
    outside = np.flatnonzero((values < 0.0) | (values > scale.maximum))
    if len(outside) > 0:
        row, column = divmod(int(outside[0]), values.shape[1])
        raise InputError(
            f"{values[row, column]:g} at candidate {row + 1}, sub-question {column + 1} is outside the scale "
            f"{scale.value!r} (0 to {scale.maximum:g})",
            field="values",
        )
