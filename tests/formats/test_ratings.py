"""Rating matrices: matched by document id, the published ones through their run. Malformed ones: test_malformed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancer.formats.ratings import RatingMatrix, is_positional, read_ratings, write_ratings
from lancer.formats.runs import read_run

RATINGS = st.one_of(st.none(), st.integers(0, 5))


@st.composite
def matrices(draw: st.DrawFn) -> RatingMatrix:
    height, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(RATINGS, min_size=width, max_size=width), min_size=height, max_size=height))
    return RatingMatrix([f"d{i}" for i in range(height)], [f"s{j}" for j in range(width)], rows)


@given(wanted=st.dictionaries(st.sampled_from(["q:1", "q#2", "3"]), matrices(), min_size=1))
def test_round_trip(wanted: dict[str, RatingMatrix], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("ratings") / "a.jsonl"
    write_ratings(path, wanted)
    assert read_ratings(path) == wanted


def test_positional_rows_follow_the_run_not_the_file_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.run").write_text("q1 Q0 second 2 1 t\nq1 Q0 first 1 2 t\n")
    (tmp_path / "a.json").write_text('{"q1": [[5, 0], [0, 3]]}')
    matrix = read_ratings(tmp_path / "a.json", read_run(tmp_path / "a.run"))["q1"]
    assert matrix == RatingMatrix(["first", "second"], ["1", "2"], [[5, 0], [0, 3]])


def test_which_files_have_no_document_ids(tmp_path: Path) -> None:
    for name, text, positional in (
        ("a.json", '{"q1": [[5, 0], [0, 3]]}', True),
        ("crux.jsonl", '{"id": "q1", "docid": "a", "rating": [1]}', False),
        ("empty.json", "", False),
        ("table.parquet", "", False),
    ):
        (tmp_path / name).write_text(text)
        assert is_positional(tmp_path / name) is positional, name
    assert not is_positional(tmp_path)


def test_crux_lines_may_be_interleaved(tmp_path: Path) -> None:
    path = tmp_path / "crux.jsonl"
    path.write_text(
        '{"id": "q1", "docid": "a", "rating": [1]}\n{"id": "q2", "docid": "a", "rating": [2, 3]}\n'
        '{"id": "q1", "docid": "b", "rating": [4]}\n'
    )
    assert read_ratings(path) == {
        "q1": RatingMatrix(["a", "b"], ["1"], [[1], [4]]),
        "q2": RatingMatrix(["a"], ["1", "2"], [[2, 3]]),
    }


@pytest.mark.shared
@pytest.mark.parametrize("first_stage", ["bm25", "lsr", "qwen3-embed-8b"])
def test_published_matrices(shared_data: Path, first_stage: str) -> None:
    folder = shared_data / "lancer-duc04"
    run = read_run(folder / "data" / "crux-mds-duc04-runs" / f"{first_stage}-crux-mds-duc04.run")
    path = folder / "results" / "crux-mds-duc04-ratings" / f"ratings.oracle.{first_stage}.json"
    found = read_ratings(path, run)
    assert found.keys() == run.rankings.keys()
    assert {(len(matrix.doc_ids), len(matrix.sub_question_ids)) for matrix in found.values()} == {(100, 15)}


@pytest.mark.shared
@pytest.mark.parametrize("first_stage", ["lsr", "qwen3-embed-8b"])
def test_rows_are_the_documents_that_the_authors_meant(shared_data: Path, first_stage: str) -> None:
    folder = shared_data / "lancer-duc04"
    run = read_run(folder / "data" / "crux-mds-duc04-runs" / f"{first_stage}-crux-mds-duc04.run")
    ratings = folder / "results" / "crux-mds-duc04-ratings" / f"ratings.oracle.{first_stage}.json"
    published = (
        folder / "results" / "crux-mds-duc04-runs" / f"{first_stage}-crux-mds-duc04__lancer__oracle__agg_sum.run"
    )
    by_sum = {
        query_id: [m.doc_ids[i] for i in sorted(range(100), key=lambda i: -sum(rating or 0 for rating in m.ratings[i]))]
        for query_id, m in read_ratings(ratings, run).items()
    }
    assert by_sum == {query_id: [doc for doc, _ in docs] for query_id, docs in read_run(published).rankings.items()}
