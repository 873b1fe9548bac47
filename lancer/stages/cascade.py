"""Which cells the judge is asked for after an estimator has seen them all (`judge.only`).

The parts of `JudgeOnly` narrow one another: a cell is asked when its document is among the top ones, its estimate is
uncertain, and the top k of a selector is not yet decided without it. Every other cell keeps the estimator's value, as
a rating. Which documents are the top ones can be made surer by `probe`: a few cells of every document are judged first.
With `until` cells go out in rounds (`lancer.selection.lazy`), without it all that are left at once; the top k of that
selector is the one that the other parts give without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from lancer.closed import Closed
from lancer.errors import UsageError
from lancer.schema import RATING_SCALE, Scale
from lancer.selection import parse_selector
from lancer.selection.lazy import Cell, Lazy, check_lazy
from lancer.selection.matrix import BoolArray, FloatArray

RatingOf = Callable[[FloatArray], FloatArray]
"""Probabilities of any shape → ratings 0–5, never falling; NaN stays NaN."""


def _lazy_selector(spec: str) -> str:
    try:
        selector = parse_selector(spec)
        check_lazy(selector)
    except UsageError as error:
        raise ValueError(str(error)) from error
    return repr(selector)


class Until(Closed):
    """Until the top `k` of the selector's ranking is decided, whatever the cells not yet judged would get.

    That is exact: no answer could change the top k. With `slack` it is not: a cell is then taken to be within the
    ratings of its estimate minus and plus `slack`, and where the judge would have said otherwise the top k can differ.
    A document of which no cell is known can answer everything; so where one call rates all its sub-questions, the exact
    form has to ask for every document that the other parts allow.
    """

    selector: Annotated[str, AfterValidator(_lazy_selector)]
    k: int = Field(10, ge=1)
    # Cells per query and round. The engine has up to this many calls of every query of a shard at once and waits at the
    # end of each round; the larger, the more cells that the answers of their own round make needless: on
    # dl19-subquestions greedy-coverage(tau=4) saves .24 of the calls at 1, .21 at 32, .18 at 64, .11 at 256.
    round: int = Field(32, ge=1)
    slack: float | None = Field(None, ge=0, le=1)  # in probability


class JudgeOnly(Closed):
    """Which cells may be judged; at least one part."""

    # By the sum of their ratings, the judge's where it was asked, else of the estimates; ties in first-stage order.
    top_documents: int | None = Field(None, ge=1)
    probe: int | None = Field(None, ge=1)  # cells of each document, the likeliest, that are judged before that
    uncertain: tuple[float, float] | None = None  # probabilities from low to high, both included
    until: Until | None = None
    calibration: str | None = None  # a file that `lancer calibrate` wrote: probability → rating; null = 5 · p

    @model_validator(mode="after")
    def _sensible(self) -> JudgeOnly:
        if self.top_documents is None and self.uncertain is None and self.until is None:
            raise ValueError("says nothing; it takes top_documents, uncertain or until, or several of them")
        if self.probe is not None and self.top_documents is None:
            raise ValueError("probe is judged to find the top documents: it needs top_documents")
        if self.uncertain is not None and not 0 <= self.uncertain[0] <= self.uncertain[1] <= 1:
            raise ValueError(f"uncertain is [low, high] within 0 and 1, found {list(self.uncertain)}")
        return self

    def __str__(self) -> str:
        """For people."""
        parts = []
        if self.top_documents is not None:
            parts.append(f"of the {self.top_documents} documents with the highest estimates")
        if self.probe is not None:
            parts[-1] += f" after {self.probe} of each document are judged"
        if self.uncertain is not None:
            parts.append(f"estimated from {self.uncertain[0]:g} to {self.uncertain[1]:g}")
        if self.until is not None:
            how = "exact" if self.until.slack is None else f"estimates within {self.until.slack:g}, not exact"
            parts.append(f"until the top {self.until.k} of {self.until.selector} is decided ({how})")
        return f"cells {', '.join(parts)}"


def linear(probabilities: FloatArray) -> FloatArray:
    """5 · p: the rule without a calibration."""
    return RATING_SCALE[1] * probabilities


class Cascade:
    """The cells of one query. `ask` and `tell` take turns until `ask` gives none.

    probabilities: (candidates, sub-questions), NaN = no estimate: such a cell counts 0 in `top_documents`, is always
    uncertain and can have any rating. has_text: (candidates,), those that can be judged.
    whole_documents: one call rates all sub-questions of a document, so `ask` gives whole rows.
    """

    def __init__(
        self,
        only: JudgeOnly,
        probabilities: FloatArray,
        has_text: Sequence[bool],
        *,
        rating_of: RatingOf = linear,
        whole_documents: bool = False,
    ) -> None:
        self.ratings = _stored(rating_of(probabilities))  # the estimates
        self._only, self._probabilities, self._rating_of = only, probabilities, rating_of
        self._has_text, self._whole = np.array(has_text, dtype=np.bool_), whole_documents
        self._known = np.nan_to_num(self.ratings)  # the judge's where it was asked
        self._open = _uncertain(only, probabilities, self._has_text)
        self._probes = _likeliest(self._open, probabilities, only.probe) if only.probe else []
        self._narrowed = False
        self._lazy: Lazy | None = None

    def ask(self) -> list[Cell]:
        """The cells of the next round, document by document; none when the rest may stay as estimated."""
        if self._probes:
            probes, self._probes = self._probes, []
            return probes
        if not self._narrowed:
            self._narrow()
        if self._lazy is not None and self._only.until is not None:
            return sorted(self._lazy.ask(self._only.until.round, whole_documents=self._whole))
        asked = [(int(i), int(j)) for i, j in np.argwhere(self._open)]
        self._open[:] = False
        return asked

    def tell(self, answers: Mapping[Cell, float | None]) -> None:
        """Takes the judge's ratings; None = it gave none, which counts 0."""
        for cell, value in answers.items():
            self._known[cell] = np.float32(value or 0.0)
            self._open[cell] = False
        if self._lazy is not None:
            self._lazy.tell((cell, float(self._known[cell])) for cell in answers)

    def _narrow(self) -> None:
        """Leaves open what may still be asked: after the probes, if there are any."""
        self._narrowed = True
        if self._only.top_documents is not None:
            sums = np.where(self._has_text, self._known.sum(axis=1), -1.0)
            self._open[np.argsort(-sums, kind="stable")[self._only.top_documents :]] = False
        if self._whole:
            self._open[self._open.any(axis=1)] = True
        until = self._only.until
        if until is not None:
            low, high = _bounds(until, self._probabilities, self._rating_of)
            self._lazy = Lazy(
                parse_selector(until.selector),
                until.k,
                np.where(self._open, low, self._known),
                np.where(self._open, high, self._known),
                self._known,
                scale=Scale.rating,
            )


def _uncertain(only: JudgeOnly, probabilities: FloatArray, has_text: BoolArray) -> BoolArray:
    allowed: BoolArray = np.repeat(has_text[:, np.newaxis], probabilities.shape[1], axis=1)
    if only.uncertain is not None:
        low, high = only.uncertain
        allowed &= np.isnan(probabilities) | ((probabilities >= low) & (probabilities <= high))
    return allowed


def _likeliest(allowed: BoolArray, probabilities: FloatArray, count: int) -> list[Cell]:
    """Of each document the `count` allowed cells with the highest probabilities, ties and no estimate last."""
    order = np.argsort(np.where(allowed, -np.nan_to_num(probabilities), np.inf), axis=1, kind="stable")[:, :count]
    cells = [(i, j) for i, row in enumerate(order.tolist()) for j in sorted(row)]
    return [cell for cell in cells if allowed[cell]]


def _bounds(until: Until, probabilities: FloatArray, rating_of: RatingOf) -> tuple[FloatArray, FloatArray]:
    lowest, highest = (np.full(probabilities.shape, float(r)) for r in RATING_SCALE)
    if until.slack is None:
        return lowest, highest
    low = _stored(rating_of(np.clip(probabilities - until.slack, 0.0, 1.0)))
    high = _stored(rating_of(np.clip(probabilities + until.slack, 0.0, 1.0)))
    return np.where(np.isnan(low), lowest, low), np.where(np.isnan(high), highest, high)


def _stored(ratings: FloatArray) -> FloatArray:
    """As a matrix is stored and read again, in float32: what is decided here is what is selected there."""
    return ratings.astype(np.float32).astype(np.float64)
