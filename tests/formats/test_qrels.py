"""Qrels round trips and the real files; malformed ones are in test_malformed."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancer.errors import OutputError
from lancer.formats.qrels import Qrel, read_qrels, write_qrels

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=6)
QRELS = st.lists(st.builds(Qrel, WORDS, WORDS, WORDS, st.integers(0, 5)), min_size=1, unique_by=lambda qrel: qrel[:3])


@given(qrels=QRELS)
def test_round_trip(qrels: list[Qrel], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("qrels") / "a.qrels"
    write_qrels(path, qrels)
    assert read_qrels(path) == qrels


@pytest.mark.parametrize("qrel", [Qrel("q 1", "0", "d", 1), Qrel("q", "", "d", 1), Qrel("q", "0", "d\n", 1)])
def test_what_qrels_cannot_hold(qrel: Qrel, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="empty or has blanks"):
        write_qrels(tmp_path / "a.qrels", [qrel])
    assert not (tmp_path / "a.qrels").exists()


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "judgments", "queries", "documents"),
    [
        ("dl19-subquestions/qrels.nist.txt", 5425, 22, 5358),
        ("dl19-subquestions/grades.subquestions.txt.gz", 54250, 22, 5358),
        ("nfcorpus/qrels.test.tsv.gz", 12334, 323, 3128),
        ("nfcorpus/qrels.dev.tsv.gz", 11385, 324, 3119),
        ("nfcorpus/qrels.train.tsv.gz", 110575, 2590, 3588),
        ("parity/trec_eval/qrels.test", 3681, 3, 3338),
        ("parity/trec_eval/qrels.rel_level", 3377, 3, 3106),  # 3,681 lines, 304 of them graded -1
        ("parity/ir_measures/compat.qrels", 311, 2, 266),
        ("parity/ndeval/argkp.qrels", 27519, 31, 7238),
    ],
)
def test_real_files(shared_data: Path, name: str, judgments: int, queries: int, documents: int) -> None:
    qrels = read_qrels(shared_data / name)
    assert len(qrels) == judgments
    assert (len({qrel.query_id for qrel in qrels}), len({qrel.doc_id for qrel in qrels})) == (queries, documents)


@pytest.mark.shared
def test_sub_topics_are_the_second_column(shared_data: Path) -> None:
    qrels = read_qrels(shared_data / "dl19-subquestions" / "grades.subquestions.txt.gz")
    assert {qrel.sub_topic for qrel in qrels} == {str(number) for number in range(1, 11)}
    assert {qrel.grade for qrel in qrels} == {0, 1, 2, 3, 4, 5}
