"""The core of the cross-encoder: blocks of texts → probabilities. It imports torch and numpy, nothing else.

Each text is tokenised once, each distinct pair scored once; the pairs of all blocks of a call are sorted by length and
packed under a token budget, without padding. What is packed together depends on the call alone.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from lancer.engines.packed_classifiers import PackedClassifier
from lancer.engines.pair_packing import Inputs, IntArray, Pack, PairTemplate, Truncation, Windows, build_inputs, split
from lancer.engines.protocols import Block
from lancer.errors import CallFailed

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

# In messages of torch's RuntimeErrors. oneDNN gives no reason where it finds no room for a kernel's code or buffers.
SIGNS_OF_NO_MEMORY = ("can't allocate memory", "could not create a primitive")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Of `PackedScorer`; see the fields of `CrossEncoderConfig`. `windows` None = first tokens."""

    activation: Literal["sigmoid", "softmax"] = "sigmoid"
    label: int = 0
    max_tokens: int = 512
    truncation: Truncation = "longest_first"
    windows: Windows | None = None
    batch_tokens: int


@dataclass(frozen=True)
class Cells:
    """The distinct texts and pairs of a call. `pair_of`: of each cell, block by block, row by row.

    `pairs` has shape (pairs, 2), indices of sub-question and document; `payer` is the first block that has the pair.
    """

    sub_questions: list[str]
    documents: list[str]
    pairs: IntArray
    pair_of: IntArray
    payer: IntArray

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> Cells:
        """Of these blocks."""
        sub_questions = {text: i for i, text in enumerate(dict.fromkeys(q for b in blocks for q in b.sub_questions))}
        documents = {text: i for i, text in enumerate(dict.fromkeys(d for b in blocks for d in b.documents))}
        width = max(1, len(sub_questions))
        keys = [
            np.array([[documents[d] * width + sub_questions[q] for q in b.sub_questions] for d in b.documents])
            for b in blocks
        ]
        flat = np.concatenate([np.empty(0, np.int64), *(k.ravel().astype(np.int64) for k in keys)])
        block_of = np.repeat(np.arange(len(blocks)), [k.size for k in keys])
        distinct, first, pair_of = np.unique(flat, return_index=True, return_inverse=True)
        pairs = np.stack([distinct % width, distinct // width], axis=1)
        return cls(list(sub_questions), list(documents), pairs, pair_of, block_of[first])


class PackedScorer:
    """A tokenizer of transformers and a packed classifier; `threads` packs are computed at a time.

    ValueError: the tokenizer does not put a pair together in a way that is known here.
    """

    def __init__(self, tokenizer: Any, classifier: PackedClassifier, settings: Settings, threads: int) -> None:
        self.settings = settings
        self._tokenizer, self._classifier = tokenizer, classifier
        self._template = PairTemplate.of(tokenizer)
        self._tokenizing = threading.Lock()
        self._most = settings.batch_tokens  # less once a pack has not fitted the memory, until the call ends
        self._threads = ThreadPoolExecutor(threads, "cross-encoder", initializer=one_thread_each)

    def inputs(self, cells: Cells) -> Inputs:
        """The model inputs of all distinct pairs; may run beside `scores`."""
        with self._tokenizing:  # fast tokenizers are not thread-safe
            sub_questions, documents = (
                self._tokenizer(texts, add_special_tokens=False, return_attention_mask=False)["input_ids"]
                if texts
                else []
                for texts in (cells.sub_questions, cells.documents)
            )
        return build_inputs(
            self._template,
            sub_questions,
            documents,
            cells.pairs,
            max_tokens=self.settings.max_tokens,
            truncation=self.settings.truncation,
            windows=self.settings.windows,
        )

    def scores(self, inputs: Inputs, pairs: int) -> npt.NDArray[np.float32]:
        """Of each pair: the maximum over its inputs; NaN if one of them is NaN or cannot be built.

        One call at a time. CallFailed: the model failed, or one pair alone does not fit the memory.
        """
        of_input = np.full(len(inputs.total), np.nan, np.float32)
        # The longest first: if the memory is too small, that shows at once. Stable, so equal lengths keep their order.
        order = np.argsort(-inputs.total, kind="stable")
        order = order[inputs.total[order] > 0]
        of_input[order] = self._probabilities(inputs, order)
        scores = np.full(pairs, -np.inf, np.float32)
        with np.errstate(invalid="ignore"):
            np.maximum.at(scores, inputs.pair_of, of_input)
        return scores

    def score(self, blocks: Sequence[Block]) -> list[npt.NDArray[np.float32]]:
        """Of each block, shape (documents, sub-questions)."""
        cells = Cells.of(blocks)
        return by_block(self.scores(self.inputs(cells), len(cells.pairs))[cells.pair_of], blocks)

    def close(self) -> None:
        """Ends the threads. May be called again."""
        self._threads.shutdown()

    def _probabilities(self, inputs: Inputs, order: IntArray) -> npt.NDArray[np.float32]:
        """Of the inputs `order`, which fall in length."""
        self._most = self.settings.batch_tokens
        packs = [order[part] for part in split(inputs.total[order], self._most)]
        parts = self._threads.map(functools.partial(self._of_pack, inputs), packs)
        return np.concatenate([np.empty(0, np.float32), *parts])

    def _of_pack(self, inputs: Inputs, rows: IntArray) -> npt.NDArray[np.float32]:
        """Of the inputs `rows`; in halves once a pack of this size has not fitted the memory."""
        import torch

        tokens = int(inputs.total[rows].sum())
        if tokens <= self._most or len(rows) == 1:
            try:
                with torch.inference_mode():
                    probabilities: npt.NDArray[np.float32] = self._activate(inputs.pack(rows)).cpu().numpy()
                return probabilities
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise CallFailed(f"the cross-encoder failed: {error}") from error
                if len(rows) == 1:
                    raise CallFailed(f"no memory for one pair of {tokens} tokens; lower max_tokens: {error}") from error
            self._most = tokens // 2
            log.warning("out of memory with a pack of %d tokens, going on with half; lower batch_tokens", tokens)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        halves = np.array_split(rows, 2)
        return np.concatenate([self._of_pack(inputs, half) for half in halves])

    def _activate(self, pack: Pack) -> torch.Tensor:
        logits = self._classifier.logits(pack)
        probabilities = logits.softmax(-1) if self.settings.activation == "softmax" else logits.sigmoid()
        return probabilities[:, self.settings.label]


def by_block(cells: npt.NDArray[np.float32], blocks: Sequence[Block]) -> list[npt.NDArray[np.float32]]:
    """The scores of all cells, block by block, as one array per block."""
    shapes = [(len(block.documents), len(block.sub_questions)) for block in blocks]
    ends = np.cumsum([n * m for n, m in shapes])
    return [cells[end - n * m : end].reshape(n, m) for (n, m), end in zip(shapes, ends, strict=True)]


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch says that something did not fit."""
    import torch

    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or any(sign in str(error) for sign in SIGNS_OF_NO_MEMORY)


def one_thread_each() -> None:
    """A pack is computed by one thread: no waiting for others, and the same bits on any number of cores."""
    import torch

    torch.set_num_threads(1)
