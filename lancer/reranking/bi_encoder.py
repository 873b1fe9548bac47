"""`bi-encoder`: cosine of the embeddings of query and document (Reimers and Gurevych, 2019; DES's first order)."""

from __future__ import annotations

from typing import ClassVar, Literal

from lancer.reranking.scored import Scored


class BiEncoderRerank(Scored):
    """The engine embeds each text once."""

    kinds: ClassVar[tuple[str, ...]] = ("bi-encoder",)
    shown: ClassVar[tuple[str, ...]] = ("threshold",)

    method: Literal["bi-encoder"] = "bi-encoder"
