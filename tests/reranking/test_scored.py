from __future__ import annotations

import numpy as np
import pytest
from pydantic import TypeAdapter

from lancer.reranking.base import RerankStep
from lancer.reranking.bi_encoder import BiEncoderRerank
from lancer.reranking.mmr import MmrRerank
from lancer.reranking.table import RerankConfig
from lancer.schema import Scale
from lancer.selection import CoverageMatrix, parse_selector

METHODS = ("bi-encoder", "cross-encoder", "mmr", "pointwise", "graded", "listwise", "setwise")


@pytest.mark.parametrize("method", METHODS)
def test_a_method_is_named_in_the_config_and_reads_back(method: str) -> None:
    adapter: TypeAdapter[RerankStep] = TypeAdapter(RerankConfig)
    step = adapter.validate_python({"method": method, "engine": "e"})
    assert step.method == step.order_name == method
    assert adapter.validate_python(step.model_dump(mode="json")) == step
    assert step.tag().startswith(f"{method}(depth=100")
    assert not set(step.tag()) & set(" :")
    assert "_=" not in step.tag()


def test_failed_pairs_come_last_and_ties_keep_the_order() -> None:
    result = BiEncoderRerank(engine="e").reranked(np.array([[0.2], [np.nan], [0.7], [0.2]]))
    assert result.order == [2, 0, 3, 1]
    assert result.faults["error"] == 1


def test_mmr_by_hand() -> None:
    """Documents 0 and 1 are nearly the same; 2 is less relevant and new."""
    step = MmrRerank(engine="e")
    assert step.block("q", ["a", "b", "c"]).sub_questions == ("q", "a", "b", "c")
    scores = np.array([[0.9, 1.0, 0.95, 0.1], [0.8, 0.95, 1.0, 0.1], [0.5, 0.1, 0.1, 1.0]])
    assert step.reranked(scores).order == [0, 2, 1]  # .5 * .5 - .5 * .1 = .2 against .5 * .8 - .5 * .95 = -.075
    relevance_only = MmrRerank.model_validate({"engine": "e", "lambda": 1})
    assert relevance_only.reranked(scores).order == [0, 1, 2]


def test_mmr_puts_what_could_not_be_scored_last() -> None:
    scores = np.array([[np.nan, 1.0, np.nan], [0.4, np.nan, 1.0]])
    result = MmrRerank(engine="e").reranked(scores)
    assert result.order == [1, 0]
    assert result.faults["error"] == 1


@pytest.mark.parametrize("seed", range(5))
def test_mmr_equals_the_selector_over_embeddings(seed: int) -> None:
    """The selector takes relevance from scores scaled to 0..1: here they are that already."""
    random = np.random.default_rng(seed)
    vectors = random.random((12, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    relevance = random.random(12)
    relevance = (relevance - relevance.min()) / (relevance.max() - relevance.min())
    matrix = CoverageMatrix(np.zeros((12, 1)), Scale.probability, first_stage_scores=relevance, embeddings=vectors)
    ours = MmrRerank.model_validate({"engine": "e", "lambda": 0.7}).reranked(
        np.column_stack([relevance, vectors @ vectors.T])
    )
    assert ours.order == parse_selector("mmr(lambda=0.7)").select(matrix).order
