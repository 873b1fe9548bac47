"""A pair is scored once: after a kill, beside new sub-questions and new candidates, and by another run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lancer.engines.protocols import Block, ScoredBlock
from lancer.pipeline.journal import Journal
from lancer.pipeline.scored_pairs import JournalledScorer, block_digest
from lancer.stages.records import of_block
from lancer.storage import Storage
from tests.scripted import ScriptedScorer


def journal(folder: Path) -> Journal:
    """A journal that knows what others left in the folder."""
    return Journal(Storage(), str(folder), "01", sorted(str(p) for p in folder.glob("*.parquet")))


class Scorer(ScriptedScorer):
    """.1 per document and .01 per sub-question; notes the pairs that it is asked."""

    def __init__(self) -> None:
        super().__init__(lambda d, q: 0.1 * int(d[1:]) + 0.01 * int(q[1:]))
        self.asked: list[Block] = []

    def score(self, blocks: Sequence[Block]) -> list[ScoredBlock]:
        self.asked += blocks
        return super().score(blocks)


def scored(folder: Path, *blocks: Block) -> tuple[list[ScoredBlock], list[Block]]:
    """Through a journal, which was then closed; and what the engine was asked."""
    engine, own = Scorer(), journal(folder)
    found = JournalledScorer(engine, own).score(blocks)
    own.close()
    return found, engine.asked


def test_a_block_is_answered_as_it_was(tmp_path: Path) -> None:
    blocks = [Block(("d1", "d2"), ("s1", "s2", "s3")), Block(("d3",), ("s1",)), Block((), ("s1",))]
    before, asked = scored(tmp_path, *blocks)
    assert asked == blocks[:2], "an empty block is no call"
    refuses: Any = None  # whoever asks it fails
    after = JournalledScorer(refuses, journal(tmp_path)).score([blocks[1], blocks[0], blocks[2]])
    for old, new in zip([before[1], before[0], before[2]], after, strict=True):
        assert np.array_equal(old.scores, new.scores)
        assert old.scores.dtype == new.scores.dtype == np.float32
    assert [(new.tokens, new.run_s, new.reused) for new in after[:2]] == [(7, 0.5, True)] * 2


def test_new_sub_questions_and_new_candidates_pay_for_themselves(tmp_path: Path) -> None:
    scored(tmp_path, Block(("d1", "d2"), ("s1", "s2")))
    block = Block(("d3", "d1", "d2", "d4"), ("s2", "s5", "s1"))
    (found,), asked = scored(tmp_path, block)
    assert asked == [Block(("d3", "d4"), ("s2", "s5", "s1")), Block(("d1", "d2"), ("s5",))]
    expected = ScriptedScorer(Scorer().score_of).score([block])[0].scores
    np.testing.assert_array_equal(found.scores, expected)
    assert (found.reused, found.reused_pairs, found.tokens, found.run_s) == (False, 4, 14, 1.0)
    record = of_block(found, query_id="q", stage="estimate", engine="e")
    assert (record.calls, record.pairs, record.prompt_tokens, record.reused_tokens) == (1, 8, 14, 7)
    (again,), asked = scored(tmp_path, block)
    assert asked == []
    assert again.reused
    assert again.tokens == 7 + 14
    np.testing.assert_array_equal(again.scores, expected)


def test_pairs_of_one_block_serve_another_in_part(tmp_path: Path) -> None:
    scored(tmp_path, Block(("d1", "d2"), ("s1", "s2")))
    (found,), asked = scored(tmp_path, Block(("d2",), ("s1",)))
    assert asked == []
    assert found.reused
    assert found.tokens == round(7 / 4)


def test_a_failed_pair_is_scored_again_and_no_other(tmp_path: Path) -> None:
    own = journal(tmp_path)
    half = ScriptedScorer(lambda d, q: float("nan") if (d, q) == ("d2", "s1") else 0.25)
    JournalledScorer(half, own).score([Block(("d1", "d2"), ("s1", "s2"))])
    own.close()
    (found,), asked = scored(tmp_path, Block(("d1", "d2"), ("s1", "s2")))
    assert asked == [Block(("d2",), ("s1",))]
    np.testing.assert_allclose(found.scores, [[0.25, 0.25], [0.21, 0.25]])
    assert found.reused_pairs == 3


def test_what_a_failed_attempt_left_is_paid_by_the_next_one_and_once(tmp_path: Path) -> None:
    own = journal(tmp_path)
    first, second = Block(("d1",), ("s1", "s2")), Block(("d1", "d2"), ("s1", "s2"))
    JournalledScorer(Scorer(), own).score([first])  # the stage that asked fails now, and asks again
    found = JournalledScorer(Scorer(), own).score([first, second])
    assert [(b.tokens, b.reused, b.reused_pairs) for b in found] == [(7, False, 0), (7, False, 0)]


def test_the_answers_of_a_call_are_written_together(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("lancer.pipeline.journal.FLUSH_S", 0.0)
    JournalledScorer(Scorer(), journal(tmp_path)).score([Block((f"d{i}",), ("s1",)) for i in range(5)])
    assert len(list(tmp_path.iterdir())) == 1, "a kill leaves all of them or none"


def test_a_blocks_digest_knows_where_texts_end_and_which_side_they_are_on() -> None:
    blocks = [
        Block(("ab", "c"), ("d",)),
        Block(("a", "bc"), ("d",)),
        Block(("ab",), ("c", "d")),
        Block(("ab", "c", "d"), ()),
        Block(("c", "ab"), ("d",)),
    ]
    assert len({block_digest(block) for block in blocks}) == len(blocks)
