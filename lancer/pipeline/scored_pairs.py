"""The journal of a scorer. Its unit is the pair: a block with one new sub-question pays for that one.

A row of the journal holds a block that was scored in one go: digests of its texts, and the scores. A block is answered
from the row that holds it whole, then pair by pair from all rows; what is left goes to the engine as few blocks as it
takes, all of a call together. Its answers are written down together too, so that a kill leaves all of them or none and
the shard's next attempt packs the same pairs: that keeps results equal to the byte.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lancer.engines.protocols import Block, PairScorer, ScoredBlock
from lancer.pipeline.journal import Answer, CallRow, Journal

FloatArray = npt.NDArray[np.float32]
Pair = tuple[bytes, bytes]  # digests of document and sub-question


class JournalledScorer:
    """PairScorer that asks the journal first."""

    def __init__(self, engine: PairScorer, journal: Journal) -> None:
        self._engine, self._journal = engine, journal

    def score(self, blocks: Sequence[Block]) -> list[ScoredBlock]:
        """See `lancer.engines.protocols.PairScorer`; what comes from the journal is marked as reused.

        A pair that is no number in the journal is asked again.
        """
        whole = self._journal.get([block_digest(block) for block in blocks])
        known = _pairs(self._journal.scored())
        fillings = [_Filling.of(block, answer, known) for block, answer in zip(blocks, whole, strict=True)]
        asked = [(filling, part) for filling in fillings for part in filling.missing()]
        scored = self._engine.score([part.block for _, part in asked]) if asked else []
        self._journal.add([_row(part.block, new) for (_, part), new in zip(asked, scored, strict=True)])
        for (filling, part), new in zip(asked, scored, strict=True):
            filling.fill(part, new)
        counted: set[str] = set()
        return [filling.result(counted) for filling in fillings]


@dataclass(frozen=True)
class _Part:
    """Some rows and columns of a block, as a block."""

    rows: npt.NDArray[np.int64]
    columns: npt.NDArray[np.int64]
    block: Block


@dataclass
class _Filling:
    """A block and what is known of its scores; NaN = nothing yet. `used` counts the cells by the answer's key."""

    block: Block
    scores: FloatArray
    used: Counter[str] = field(default_factory=Counter)
    answers: dict[str, Answer] = field(default_factory=dict)
    new: list[ScoredBlock] = field(default_factory=list)

    @classmethod
    def of(cls, block: Block, whole: Answer | None, known: dict[Pair, tuple[float, Answer]]) -> _Filling:
        """From the row that holds the block, else from all rows."""
        shape = (len(block.documents), len(block.sub_questions))
        if whole is not None and np.isfinite(scores := np.array(whole.row.scores, np.float32)).all():
            key = whole.row.key
            return cls(block, scores.reshape(shape), Counter({key: scores.size}), {key: whole})
        filling = cls(block, np.full(shape, np.nan, np.float32))
        if known:
            columns = [text_digest(text) for text in block.sub_questions]
            for i, row in enumerate(map(text_digest, block.documents)):
                for j, column in enumerate(columns):
                    if (row, column) in known:
                        filling.scores[i, j], answer = known[row, column]
                        filling.used[answer.row.key] += 1
                        filling.answers[answer.row.key] = answer
        return filling

    def missing(self) -> list[_Part]:
        """The cells without a score: documents that lack the same sub-questions make a block together."""
        open_cells = np.isnan(self.scores)
        if open_cells.all():  # the block as it is, so that the journal can answer it whole
            n, m = open_cells.shape
            return [_Part(np.arange(n), np.arange(m), self.block)] if n * m else []
        patterns: dict[bytes, list[int]] = {}
        for row in np.flatnonzero(open_cells.any(axis=1)).tolist():
            patterns.setdefault(open_cells[row].tobytes(), []).append(row)
        parts = []
        for rows in patterns.values():
            columns = np.flatnonzero(open_cells[rows[0]])
            documents = tuple(self.block.documents[row] for row in rows)
            sub_questions = tuple(self.block.sub_questions[column] for column in columns)
            parts.append(_Part(np.array(rows), columns, Block(documents, sub_questions)))
        return parts

    def fill(self, part: _Part, new: ScoredBlock) -> None:
        """Takes what the engine says of a part."""
        self.scores[np.ix_(part.rows, part.columns)] = new.scores
        self.new.append(new)

    def result(self, counted: set[str]) -> ScoredBlock:
        """`counted`: keys of answers that were made for this shard just now, and are on some block's account."""
        made = [a.row for key, a in self.answers.items() if not a.reused and key not in counted]
        counted.update(row.key for row in made)
        old = {key: cells for key, cells in self.used.items() if self.answers[key].reused}
        shares = [
            (self.answers[key].row, cells / len(self.answers[key].row.scores or ())) for key, cells in old.items()
        ]
        reused_tokens = round(sum(row.prompt_tokens * share for row, share in shares))
        if old and not made and not self.new:
            return ScoredBlock(
                scores=self.scores,
                tokens=reused_tokens,
                queue_s=sum(row.queue_s * share for row, share in shares),
                run_s=sum(row.run_s * share for row, share in shares),
                reused=True,
            )
        return ScoredBlock(
            scores=self.scores,
            tokens=sum(row.prompt_tokens for row in made) + sum(new.tokens for new in self.new),
            queue_s=sum(row.queue_s for row in made) + sum(new.queue_s for new in self.new),
            run_s=sum(row.run_s for row in made) + sum(new.run_s for new in self.new),
            reused_pairs=sum(old.values()),
            reused_tokens=reused_tokens,
            cut_inputs=sum(new.cut_inputs for new in self.new),
        )


def _pairs(answers: Sequence[Answer]) -> dict[Pair, tuple[float, Answer]]:
    """Every pair that has a number; of several answers the first."""
    known: dict[Pair, tuple[float, Answer]] = {}
    for answer in answers:
        row = answer.row
        scores = iter(row.scores or ())
        for document in row.documents or ():
            for sub_question in row.sub_questions or ():
                score = next(scores)
                if np.isfinite(score):
                    known.setdefault((document, sub_question), (score, answer))
    return known


def text_digest(text: str) -> bytes:
    """Identifies one side of a pair; 16 bytes."""
    return hashlib.sha256(text.encode()).digest()[:16]


def block_digest(block: Block) -> str:
    """Identifies what a scorer is asked."""
    digest = hashlib.sha256(f"{len(block.documents)} {len(block.sub_questions)}".encode())
    for text in (*block.documents, *block.sub_questions):
        digest.update(text_digest(text))
    return digest.hexdigest()


def _row(block: Block, scored: ScoredBlock) -> CallRow:
    return CallRow(
        block_digest(block),
        scores=scored.scores.ravel().tolist(),
        documents=[text_digest(text) for text in block.documents],
        sub_questions=[text_digest(text) for text in block.sub_questions],
        prompt_tokens=scored.tokens,
        queue_s=scored.queue_s,
        run_s=scored.run_s,
    )
