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
from typing import Final

import numpy as np

from lancer.errors import UsageError
from lancer.schema import Scale
from lancer.selection.base import Selector
from lancer.selection.bounds import Rule, Step
from lancer.selection.greedy import Greedy
from lancer.selection.matrix import BoolArray, CoverageMatrix, FloatArray
from lancer.selection.sum import Sum

Cell = tuple[int, int]  # candidate, sub-question

EXACT: Final = ("sum", "greedy-sum", "greedy-coverage", "greedy-alpha", "greedy-expected")


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
        # answer, which later steps need too. On dl19-subquestions with MiniLM the second half of that takes the share
        # asked in rounds of 32 from .801 to .795 for greedy-coverage(4), from .798 to .790 for greedy-alpha(.5, 4).
        unit = np.ascontiguousarray(expected.T / scale.maximum)
        self._unlikely = (1.0 - unit) * (1.0 - unit.mean(axis=1, keepdims=True)) ** 2 if unit.size else unit
        self._unknown: BoolArray = np.ascontiguousarray((low < high).T)
        self.chosen: list[int] = []  # the first documents of the ranking, as far as they are decided
        self._step = Step(self._low, self._high, self.chosen, self._rule)
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
        other._step = Step(other._low, other._high, other.chosen, self._rule)
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
            self._step = Step(self._low, self._high, self.chosen, self._rule)

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


def _rule(selector: Selector, scale: Scale) -> Rule:
    if isinstance(selector, Greedy):
        decay = selector.utility(CoverageMatrix(np.zeros((1, 1)), scale)).decay
        return Rule(decay, selector.ties, selector.rest)
    assert isinstance(selector, Sum), selector
    return Rule(0.0, "first", "first")  # the greedy loop whose weights never fall
