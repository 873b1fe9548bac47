"""The top k of a selector from as few cells of the matrix as can be: bounds on gains, and which cell to ask for next.

Every cell lies between a low and a high value; an answer makes both the same. `Lazy` follows the selector's own greedy
loop and commits a document as soon as no completion of the cells can put another one in its place, so that a selector
applied to any completion, with the estimator's values for example, has the same top k as applied to the full matrix.

Why it is exact, ties and rest included. In each step the selector takes the highest key (gain, tie rule, first-stage
order). Gain and own utility only grow with a document's cells, also in floating point, where sums and products of
numbers >= 0 are monotone; so the key at the low values and the key at the high values bound it, and both are reached.
What is known of chosen documents bounds the weights of the sub-questions. When no gain can be positive the rest rule
decides, by own utility with the same bounds or by an order that needs no cell. That holds for the selectors of which a
document's gain is a sum of one growing term per cell: sum, greedy-sum, greedy-coverage, greedy-alpha, greedy-expected.
It does not for rrf (a cell moves the ranks of all other documents), pm2 (shares of a total), mmr and xquad (cosines;
a relevance that is not in the matrix), max (no sum), and budgets (gain per token).

Which cell: the document with the highest upper bound cannot be passed over, whatever the others hold (Chang and Hwang,
"Minimal probing", SIGMOD 2002), so one of its cells is asked, the one that is expected to lower the bound most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from lancer.errors import UsageError
from lancer.schema import Scale
from lancer.selection.arithmetic import column_sums
from lancer.selection.base import Selector
from lancer.selection.greedy import Greedy
from lancer.selection.matrix import BoolArray, CoverageMatrix, FloatArray
from lancer.selection.sum import Sum

Cell = tuple[int, int]  # candidate, sub-question

EXACT: Final = ("sum", "greedy-sum", "greedy-coverage", "greedy-alpha", "greedy-expected")


@dataclass(frozen=True)
class _Rule:
    """How a selector compares documents: decay of `lancer.selection.kernel.Utility`, tie rule and rest rule."""

    decay: float | None
    ties: str
    rest: str


def check_lazy(selector: Selector) -> None:
    """UsageError for a selector whose top k cannot be decided from bounds."""
    if selector.name not in EXACT:
        raise UsageError(
            f"selector {selector!r} cannot be decided from a part of the matrix; {', '.join(EXACT)} can be"
        )
    if selector.needs:
        raise UsageError(f"selector {selector!r} needs {', '.join(selector.needs)}, which lazy judging has not")


class Lazy:
    """The top `k` of one query's matrix, as far as its cells are known.

    low, high: (candidates, sub-questions), what each cell can be, in `scale`; equal where it is known.
    expected: of the same shape, what the cells probably are; it decides the order of asking and nothing else.
    UsageError: see `check_lazy`.
    """

    def __init__(
        self, selector: Selector, k: int, low: FloatArray, high: FloatArray, expected: FloatArray, *, scale: Scale
    ) -> None:
        check_lazy(selector)
        self._selector, self._scale, self._k = selector, scale, min(k, len(low))
        self._rule = _rule(selector, scale)
        self._low, self._high = self._columns(low), self._columns(high)
        self._expected = self._columns(expected)
        # What lowers bounds: cells that are expected to be low; of those the ones of sub-questions that few documents
        # answer, which later steps need too. On dl19-subquestions that saves one call in fifty.
        unit = np.ascontiguousarray(expected.T / scale.maximum)
        self._unlikely = (1.0 - unit) * (1.0 - unit.mean(axis=1, keepdims=True)) ** 2 if unit.size else unit
        self._unknown: BoolArray = np.ascontiguousarray((low < high).T)
        self.chosen: list[int] = []  # the first documents of the ranking, as far as they are decided
        self._step = _Step(self._low, self._high, self.chosen, self._rule)
        self._advance()

    @property
    def decided(self) -> bool:
        """Whether no further answer can change the top k."""
        return len(self.chosen) == self._k

    def tell(self, answers: Iterable[tuple[Cell, float]]) -> None:
        """Takes the values of some cells; what has no value counts 0, as selectors count it."""
        answers = list(answers)
        values = self._columns(np.array([[value] for _, value in answers], dtype=np.float64).reshape(-1, 1))
        for (cell, _), value in zip(answers, values[0] if answers else (), strict=True):
            self._settle(cell, float(value))
        self._advance()

    def ask(self, count: int, *, whole_documents: bool = False) -> list[Cell]:
        """The next cells, at most `count`; [] exactly when it is decided.

        One at a time they are the necessary ones. Further ones are those that would follow if each answer were what is
        expected: the larger a round, the fuller the engine and the more cells that turn out not to be needed. With
        `whole_documents` all unknown cells of each document, the last one's too.
        """
        guess = self._copy()
        cells: list[Cell] = []
        while len(cells) < count and not guess.decided:
            document, question = guess._next()
            row = np.flatnonzero(guess._unknown[:, document]).tolist() if whole_documents else [question]
            for question in row:
                cells.append((document, question))
                guess._settle((document, question), float(self._expected[question, document]))
            guess._advance()
        return cells

    def _columns(self, values: FloatArray) -> FloatArray:
        """(sub-questions, candidates): what each cell is worth."""
        matrix = CoverageMatrix(values, self._scale)
        if isinstance(self._selector, Greedy):
            return np.array(self._selector.utility(matrix).columns, order="C")
        return np.ascontiguousarray(np.where(self._selector.covered(matrix), matrix.filled, 0.0).T)

    def _copy(self) -> Lazy:
        other = object.__new__(Lazy)
        other.__dict__ |= self.__dict__
        for name in ("_low", "_high", "_unknown"):
            setattr(other, name, getattr(self, name).copy())
        other.chosen = list(self.chosen)
        other._step = _Step(other._low, other._high, other.chosen, self._rule)
        return other

    def _settle(self, cell: Cell, worth: float) -> None:
        document, question = cell
        self._low[question, document] = self._high[question, document] = worth
        self._unknown[question, document] = False
        self._step.update(document)

    def _advance(self) -> None:
        """Commits documents while the next one is certain."""
        while not self.decided:
            best = self._step.highest()
            if not self._step.is_certain(best):
                return
            self.chosen.append(best)
            self._step = _Step(self._low, self._high, self.chosen, self._rule)

    def _next(self) -> Cell:
        """The cell to ask for when the next document is not certain."""
        # First what chosen documents leave open: it is in the gains of all others.
        for document in self.chosen if not self._step.resting else ():
            questions = np.flatnonzero(self._unknown[:, document] & self._step.loose)
            if len(questions):
                return document, int(questions[self._unlikely[questions, document].argmin()])
        document = self._step.highest()
        unknown = self._unknown[:, document]
        low, high = self._step.terms(document)
        for widths in (high - low, self._high[:, document] - self._low[:, document]):
            drop = np.where(unknown & (widths > 0.0), widths * self._unlikely[:, document], -1.0)
            if drop.max(initial=-1.0) >= 0.0:
                return document, int(drop.argmax())
        raise AssertionError("a document whose cells are known is certain")


class _Step:
    """The step after `chosen`: bounds of every open document's key, (gain, own utility); then the first stage decides.

    low, high: (sub-questions, candidates), what cells are worth; they are kept, and `update` follows a change in them.
    """

    def __init__(self, low: FloatArray, high: FloatArray, chosen: list[int], rule: _Rule) -> None:
        self._low, self._high, self._chosen, self._rule = low, high, chosen, rule
        self._begin()

    def _begin(self) -> None:
        self._least, self._most = _weights(self._low, self._high, self._chosen, self._rule.decay)
        self.loose: BoolArray = (self._least < self._most).ravel()  # sub-questions whose weight chosen ones leave open
        self._gains = [column_sums(terms) for terms in self.terms(slice(None))]
        self._owns = [column_sums(self._low), column_sums(self._high)]
        for bounds in self._gains:
            bounds[self._chosen] = -1.0
        self._compare()

    def terms(self, documents: int | slice) -> tuple[FloatArray, FloatArray]:
        """What each cell adds to its document's gain, at least and at most."""
        low, high = self._low[:, documents], self._high[:, documents]
        shape = (-1,) if low.ndim == 1 else (-1, 1)
        least, most = self._least.reshape(shape), self._most.reshape(shape)
        if self._rule.decay is None:
            return np.maximum(low - most, 0.0), np.maximum(high - least, 0.0)
        return low * least, high * most

    def update(self, document: int) -> None:
        """A cell of the document is another one now."""
        if document in self._chosen:
            self._begin()
            return
        for bounds, terms in zip(self._gains, self.terms(document), strict=True):
            bounds[document] = _sum(terms)
        for bounds, terms in zip(self._owns, (self._low[:, document], self._high[:, document]), strict=True):
            bounds[document] = _sum(terms)
        if not self.resting and self._gains[1].max() <= 0.0:
            self._compare()

    def highest(self) -> int:
        """The open document with the highest upper bound; -1 when there is none."""
        return self._top(self._key[1])

    def is_certain(self, document: int) -> bool:
        """Whether it comes before every other open document in every completion."""
        low, high = self._key
        # A gain of 0 and the rest rule compare alike, or they are the same thing.
        if not self.resting and self._rule.ties != self._rule.rest and low[0][document] <= 0.0:
            return False
        gain, high[0][document] = high[0][document], -1.0
        second = self._top(high)
        high[0][document] = gain
        if second < 0:
            return True
        return (low[0][document], low[1][document], -document) > (high[0][second], high[1][second], -second)

    def _compare(self) -> None:
        """What is compared: gain and tie rule or, when no gain can be positive any more, the rest rule alone."""
        self.resting = not (self._gains[1] > 0.0).any()
        nothing = np.zeros(self._low.shape[1])
        nothing[self._chosen] = -1.0
        by_own = (self._rule.rest if self.resting else self._rule.ties) == "own"
        gains = [nothing, nothing] if self.resting else self._gains
        owns = self._owns if by_own else [nothing, nothing]
        self._key = (gains[0], owns[0]), (gains[1], owns[1])

    def _top(self, key: tuple[FloatArray, FloatArray]) -> int:
        rows = np.flatnonzero(key[0] == key[0].max())
        if key[0][rows[0]] < 0.0:
            return -1
        if len(rows) > 1:
            rows = rows[key[1][rows] == key[1][rows].max()]
        return int(rows[0])


def _weights(
    low: FloatArray, high: FloatArray, chosen: list[int], decay: float | None
) -> tuple[FloatArray, FloatArray]:
    """(sub-questions, 1) twice: the least and the most that a sub-question weighs, or that is the best of it so far."""
    least = most = np.full((len(low), 1), 0.0 if decay is None else 1.0)
    for document in chosen:
        lows, highs = low[:, document, np.newaxis], high[:, document, np.newaxis]
        if decay is None:
            least, most = np.maximum(least, lows), np.maximum(most, highs)
        else:
            least, most = least * (1.0 - decay * highs), most * (1.0 - decay * lows)
    return least, most


def _sum(terms: FloatArray) -> float:
    """One after the other, as `column_sums` adds; numpy's own sum of a single column does not."""
    total = 0.0
    for term in terms.tolist():
        total += term
    return total


def _rule(selector: Selector, scale: Scale) -> _Rule:
    if isinstance(selector, Greedy):
        decay = selector.utility(CoverageMatrix(np.zeros((1, 1)), scale)).decay
        return _Rule(decay, selector.ties, selector.rest)
    assert isinstance(selector, Sum), selector
    return _Rule(0.0, "first", "first")  # the greedy loop whose weights never fall
