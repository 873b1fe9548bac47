"""Every reranking method by name: the one place where a new one is added."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lancer.reranking.bi_encoder import BiEncoderRerank
from lancer.reranking.cross_encoder import CrossEncoderRerank
from lancer.reranking.graded import GradedRerank
from lancer.reranking.listwise import ListwiseRerank
from lancer.reranking.mmr import MmrRerank
from lancer.reranking.pointwise import PointwiseRerank
from lancer.reranking.setwise import SetwiseRerank

RerankConfig = Annotated[
    BiEncoderRerank | CrossEncoderRerank | MmrRerank | PointwiseRerank | GradedRerank | ListwiseRerank | SetwiseRerank,
    Field(discriminator="method"),
]
