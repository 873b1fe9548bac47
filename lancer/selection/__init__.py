"""From a coverage matrix to a ranking: pure functions of arrays, without files and without Ray.

    matrix.py      what goes in and comes out          table.py   the selectors by name
    parameters.py  what a parameter may be             spec.py    text -> selector
    base.py        what a selector is                  kernel.py  the greedy loop, compiled.py the same for many queries

One file per selector.
"""

from __future__ import annotations

from lancer.selection.base import Selector
from lancer.selection.matrix import CoverageMatrix, Selection
from lancer.selection.spec import parse_selector
from lancer.selection.table import SELECTORS

__all__ = ["SELECTORS", "CoverageMatrix", "Selection", "Selector", "parse_selector"]
