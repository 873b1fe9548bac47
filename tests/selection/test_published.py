"""Published rankings and figures, from the real data beside the checkout."""

from __future__ import annotations

import gzip
from collections import defaultdict
from pathlib import Path

import ir_measures
import numpy as np
import pytest

from lancer.formats.ratings import read_ratings
from lancer.formats.runs import read_run
from lancer.schema import Scale
from lancer.selection import CoverageMatrix, parse_selector

pytestmark = pytest.mark.shared


def rating_matrix(cells: list[list[int | None]]) -> CoverageMatrix:
    return CoverageMatrix(np.array(cells, dtype=np.float64), Scale.rating)


@pytest.mark.parametrize("first_stage", ["lsr", "qwen3-embed-8b"])
def test_sum_gives_the_published_oracle_runs_of_lancer(shared_data: Path, first_stage: str) -> None:
    folder = shared_data / "lancer-duc04"
    run = read_run(folder / "data" / "crux-mds-duc04-runs" / f"{first_stage}-crux-mds-duc04.run")
    results = folder / "results"
    ratings = read_ratings(results / "crux-mds-duc04-ratings" / f"ratings.oracle.{first_stage}.json", run)
    published = read_run(results / "crux-mds-duc04-runs" / f"{first_stage}-crux-mds-duc04__lancer__oracle__agg_sum.run")
    selector = parse_selector("sum(tau=1)")
    assert len(ratings) == 50
    for query_id, judged in ratings.items():
        assert judged.doc_ids == [doc_id for doc_id, _ in run.rankings[query_id]]
        selection = selector.select(rating_matrix(judged.ratings))
        assert [judged.doc_ids[row] for row in selection.order] == [d for d, _ in published.rankings[query_id]]


@pytest.fixture(scope="module")
def graded(shared_data: Path) -> tuple[dict[str, list[str]], dict[str, dict[tuple[str, int], int]]]:
    """Candidates and grades (document, sub-question) of the 22 queries of `dl19-subquestions`."""
    folder = shared_data / "dl19-subquestions"
    grades: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)
    with gzip.open(folder / "grades.subquestions.txt.gz", "rt") as lines:
        for line in lines:
            query_id, sub_question, doc_id, grade = line.split()
            grades[query_id][doc_id, int(sub_question)] = int(grade)
    run = read_run(folder / "candidates.bm25-judged-pool.run")
    return {query_id: [d for d, _ in ranking] for query_id, ranking in run.rankings.items()}, grades


@pytest.mark.parametrize(
    ("spec", "figure"),
    [
        ("sum(tau=1)", 0.893),
        ("greedy-sum(tau=1,ties=first)", 0.905),
        ("greedy-sum(tau=1)", 0.912),
        ("greedy-coverage(tau=4)", 0.930),
        ("greedy-alpha(alpha=0.5,tau=4)", 0.952),
    ],
)
def test_alpha_ndcg_over_the_true_grades(
    graded: tuple[dict[str, list[str]], dict[str, dict[tuple[str, int], int]]], spec: str, figure: float
) -> None:
    candidates, grades = graded
    selector = parse_selector(spec)
    ranked = []
    for query_id, doc_ids in candidates.items():
        values = [[grades[query_id].get((doc_id, j)) for j in range(1, 11)] for doc_id in doc_ids]
        order = selector.select(rating_matrix(values)).order
        ranked += [ir_measures.ScoredDoc(query_id, doc_ids[row], -place) for place, row in enumerate(order)]
    qrels = [
        ir_measures.Qrel(query_id, doc_id, grade, str(j))
        for query_id, cells in grades.items()
        for (doc_id, j), grade in cells.items()
    ]
    measure = ir_measures.alpha_nDCG(rel=4) @ 10
    assert ir_measures.calc_aggregate([measure], qrels, ranked)[measure] == pytest.approx(figure, abs=5e-4)
