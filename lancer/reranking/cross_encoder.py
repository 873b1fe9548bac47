"""`cross-encoder`: a classifier reads query and document together (Nogueira and Cho, 2019).

Long documents are the engine's business: its config says whether their first tokens count or the best of several
windows.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from lancer.reranking.scored import Scored


class CrossEncoderRerank(Scored):
    """Probabilities by the engine's activation."""

    kinds: ClassVar[tuple[str, ...]] = ("cross-encoder",)
    shown: ClassVar[tuple[str, ...]] = ("threshold",)

    method: Literal["cross-encoder"] = "cross-encoder"
