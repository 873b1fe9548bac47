"""How (sub-question, document) pairs become model inputs: from token ids of each text, exactly as the tokenizer would.

The cross-encoder tokenises every text once. A pair's input is then five slices of one flat array of ids: what the
tokenizer puts before, the sub-question, what goes between, the document or a window of it, what goes after. A pack
holds several inputs one after another, without padding; a bi-encoder's are single texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Truncation = Literal["longest_first", "only_second"]


@dataclass(frozen=True)
class Piece:
    """Ids that belong together, and the token type of each."""

    ids: IntArray
    types: IntArray


@dataclass(frozen=True)
class PairTemplate:
    """What a tokenizer puts around the two texts of a pair, and the token types that it gives the texts."""

    before: Piece
    between: Piece
    after: Piece
    text_types: tuple[int, int]

    @property
    def specials(self) -> int:
        """Number of ids that are not the texts' own."""
        return len(self.before.ids) + len(self.between.ids) + len(self.after.ids)

    @classmethod
    def of(cls, tokenizer: Any) -> PairTemplate:
        """Read off one encoded pair. ValueError: the tokenizer is none of the fast ones, or does something else."""
        encoding = tokenizer("a", "a")
        if not encoding.is_fast:
            raise ValueError("it has no fast tokenizer")
        owner = encoding.sequence_ids(0)
        if 0 not in owner or 1 not in owner:
            raise ValueError("its tokenizer drops letters")
        ids = np.array(encoding["input_ids"], dtype=np.int64)
        types = np.array(encoding.get("token_type_ids", [0] * len(ids)), dtype=np.int64)
        first, second = owner.index(0), owner.index(1)
        end, last = first + owner.count(0), second + owner.count(1)
        if owner[first:end] != [0] * (end - first) or owner[second:last] != [1] * (last - second) or end > second:
            raise ValueError("its tokenizer does not put a pair's texts one after the other")
        return cls(
            before=Piece(ids[:first], types[:first]),
            between=Piece(ids[end:second], types[end:second]),
            after=Piece(ids[last:], types[last:]),
            text_types=(int(types[first]), int(types[second])),
        )


@dataclass(frozen=True)
class Windows:
    """Documents of more than `tokens` tokens are seen through windows that start every `stride` tokens."""

    tokens: int
    stride: int

    def of(self, length: int) -> list[tuple[int, int]]:
        """(start, length) of each window of a document; the last one may be shorter."""
        count = 1 if length <= self.tokens else 1 + -(-(length - self.tokens) // self.stride)
        return [(i * self.stride, min(self.tokens, length - i * self.stride)) for i in range(count)]


@dataclass(frozen=True)
class Pack:
    """Inputs one after another: `ids`, `types` and `positions` (from 0 in each input) have shape (sum of lengths,)."""

    ids: IntArray
    types: IntArray
    positions: IntArray
    lengths: IntArray

    @classmethod
    def of_texts(cls, token_ids: Sequence[Sequence[int]]) -> Pack:
        """Of single texts, each with its special tokens."""
        lengths = np.array([len(ids) for ids in token_ids], np.int64)
        positions = np.concatenate([np.arange(n) for n in lengths])
        return cls(np.concatenate([np.asarray(ids, np.int64) for ids in token_ids]), 0 * positions, positions, lengths)


@dataclass(frozen=True)
class Inputs:
    """The inputs of many pairs, as slices: `starts` and `sizes` have shape (inputs, 5) and point into `ids`, `types`.

    `pair_of` (inputs,) is the pair of each input, ascending; a pair has one input, or one per window. `total` (inputs,)
    is the length of each; 0 = there is no room for the document. `cut` (inputs,): some of its text is left out.
    """

    ids: IntArray
    types: IntArray
    starts: IntArray
    sizes: IntArray
    pair_of: IntArray
    total: IntArray
    cut: BoolArray

    def pack(self, rows: IntArray) -> Pack:
        """The inputs `rows`, in that order."""
        sizes = self.sizes[rows].ravel()
        ends = np.cumsum(sizes)
        at = np.arange(ends[-1]) + np.repeat(self.starts[rows].ravel() - (ends - sizes), sizes)
        lengths = self.total[rows]
        begins = np.cumsum(lengths) - lengths
        positions = np.arange(ends[-1]) - np.repeat(begins, lengths)
        return Pack(self.ids[at], self.types[at], positions, lengths)


def build_inputs(
    template: PairTemplate,
    sub_questions: Sequence[Sequence[int]],
    documents: Sequence[Sequence[int]],
    pairs: IntArray,
    *,
    max_tokens: int,
    truncation: Truncation,
    windows: Windows | None,
) -> Inputs:
    """Inputs of `pairs`, shape (pairs, 2): indices of a sub-question and of a document, both given as token ids."""
    pieces = [template.before, template.between, template.after]
    for texts, kind in ((sub_questions, template.text_types[0]), (documents, template.text_types[1])):
        pieces += [Piece(np.asarray(ids, np.int64), np.full(len(ids), kind)) for ids in texts]
    piece_sizes = np.array([len(piece.ids) for piece in pieces])
    piece_starts = np.cumsum(piece_sizes) - piece_sizes

    # Every document's windows once, then repeated for each of its pairs.
    spans = [[(0, len(ids))] if windows is None else windows.of(len(ids)) for ids in documents]
    per_document = np.array([len(s) for s in spans], dtype=np.int64)
    flat_spans = np.array([span for s in spans for span in s], dtype=np.int64).reshape(-1, 2)
    pair_of = np.repeat(np.arange(len(pairs)), per_document[pairs[:, 1]])
    first_input = np.searchsorted(pair_of, np.arange(len(pairs)))
    number = np.arange(len(pair_of)) - first_input[pair_of]
    question, document = pairs[pair_of, 0], pairs[pair_of, 1]
    span = flat_spans[(np.cumsum(per_document) - per_document)[document] + number]

    question_piece, document_piece = 3 + question, 3 + len(sub_questions) + document
    room = max_tokens - template.specials
    kept_question, kept_document = kept(piece_sizes[question_piece], span[:, 1], room, truncation)
    columns = [np.full(len(pair_of), piece_starts[i]) for i in range(3)]
    starts = [columns[0], piece_starts[question_piece], columns[1], piece_starts[document_piece] + span[:, 0]]
    sizes = np.stack(
        [
            np.full(len(pair_of), piece_sizes[0]),
            kept_question,
            np.full(len(pair_of), piece_sizes[1]),
            kept_document,
            np.full(len(pair_of), piece_sizes[2]),
        ],
        axis=1,
    )
    return Inputs(
        ids=np.concatenate([piece.ids for piece in pieces]),
        types=np.concatenate([piece.types for piece in pieces]),
        starts=np.stack([*starts, columns[2]], axis=1),
        sizes=sizes,
        pair_of=pair_of,
        total=np.where(kept_document < 0, 0, sizes.sum(axis=1)),
        cut=(kept_document >= 0) & ((kept_question < piece_sizes[question_piece]) | (kept_document < span[:, 1])),
    )


def kept(first: IntArray, second: IntArray, room: int, truncation: Truncation) -> tuple[IntArray, IntArray]:
    """How many tokens a fast tokenizer keeps of each text of a pair. -1 of the second: it would refuse the pair."""
    if truncation == "only_second":
        left = np.where(first + second <= room, second, room - first)
        return first, np.where((left > 0) | (first + second <= room), left, -1)
    short, long = np.minimum(first, second), np.maximum(first, second)
    long = np.where(short + long <= room, long, np.maximum(short, room - short))
    both = short + long > room
    short, long = np.where(both, room // 2, short), np.where(both, room // 2 + room % 2, long)
    return np.where(first > second, long, short), np.where(first > second, short, long)


def split(lengths: IntArray, budget: int) -> list[slice]:
    """Packs of neighbouring inputs that hold at most `budget` tokens each; a longer input is a pack of its own."""
    ends = np.cumsum(lengths)
    packs, start = [], 0
    while start < len(lengths):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + budget, side="right")))
        packs.append(slice(start, stop))
        start = stop
    return packs
