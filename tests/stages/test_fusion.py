from __future__ import annotations

from lancer.engines.protocols import Hit
from lancer.stages.fusion import reciprocal_rank_fusion


def ranking(*doc_ids: str) -> list[Hit]:
    return [Hit(doc_id, 10.0 - place) for place, doc_id in enumerate(doc_ids)]


def test_scores_are_sums_of_reciprocal_ranks() -> None:
    fused = reciprocal_rank_fusion([ranking("a", "b", "c"), ranking("c", "d")])
    assert [(hit.doc_id, hit.score) for hit in fused] == [
        ("c", 1 / 63 + 1 / 61),
        ("a", 1 / 61),
        ("b", 1 / 62),
        ("d", 1 / 62),
    ]


def test_ties_follow_the_first_ranking_then_the_second() -> None:
    assert [h.doc_id for h in reciprocal_rank_fusion([ranking("b", "a"), ranking("a", "b")])] == ["b", "a"]
    fused = reciprocal_rank_fusion([ranking("x", "a"), ranking("y", "b")])
    assert [h.doc_id for h in fused] == ["x", "y", "a", "b"]


def test_nothing_to_fuse() -> None:
    assert reciprocal_rank_fusion([[], []]) == []
    assert [h.doc_id for h in reciprocal_rank_fusion([[], ranking("a")])] == ["a"]
