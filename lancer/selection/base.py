"""What every selector is: a frozen value that turns a coverage matrix into a complete order and says why.

A new selector is a frozen dataclass with a `name`, its parameters and `order`, in a file of its own, and one line in
`lancer.selection.table`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from lancer.errors import PlanError
from lancer.schema import Scale
from lancer.selection.matrix import OPTIONAL_FIELDS, BoolArray, CoverageMatrix, IntArray, Selection
from lancer.selection.parameters import Threshold, allowed_values, canonical, check_values, field_name, write


@dataclass(frozen=True, kw_only=True, repr=False)
class Selector(ABC):
    """Name and parameters; `repr` is the canonical spec, parses back and serves as the run tag.

    Parameters outside their allowed values raise UsageError when the selector is made.
    """

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_values(self.name, self)

    def __repr__(self) -> str:
        return canonical(self.name, self)

    @property
    def needs(self) -> tuple[str, ...]:
        """The optional fields of `CoverageMatrix` without which it cannot select."""
        return ()

    def check(self, scale: Scale) -> None:
        """PlanError where a threshold is above the scale of the matrix: nothing could reach it."""
        for name, allowed in allowed_values(type(self)).items():
            value = getattr(self, field_name(name))
            if isinstance(allowed, Threshold) and value > scale.maximum:
                raise PlanError(
                    f"selector {self!r}: {name} {write(value)} is above the maximum of the scale {scale.value!r} "
                    f"(0 to {scale.maximum:g}); give it in that scale"
                )

    def covered(self, matrix: CoverageMatrix) -> BoolArray:
        """(candidates, sub-questions): what counts as covered in the explanation.

        Without a tau of its own, a selector takes half of the scale: a probability of .5, a rating of 3.
        """
        return matrix.covered(matrix.scale.maximum / 2)

    @abstractmethod
    def order(self, matrix: CoverageMatrix) -> IntArray:
        """All rows of the matrix, best first; ties in first-stage order unless the selector says otherwise."""

    def select(self, matrix: CoverageMatrix) -> Selection:
        """The ranking with its explanation. PlanError where the matrix lacks what the parameters need."""
        self.check(matrix.scale)
        for field in self.needs:
            if getattr(matrix, field) is None:
                raise PlanError(f"selector {self!r} needs {field}: {OPTIONAL_FIELDS[field]}; this matrix has none")
        return Selection.explain(self.order(matrix), self.covered(matrix))
