"""A prefix cache over whole blocks of tokens, as vLLM's: how much of a prompt it would find, without a model."""

from __future__ import annotations

from collections.abc import Sequence


class PrefixCache:
    """`block`: tokens per block. It forgets nothing: a run whose cache is too small finds less."""

    def __init__(self, block: int) -> None:
        self._block = block
        self._known: set[int] = set()

    def take(self, ids: Sequence[int]) -> int:
        """Tokens of the prompt that are found, then all of its whole blocks are kept.

        The last token is computed in any case, as its output is needed: where it ends a block, so is that block.
        """
        found, missed, key = 0, False, 0
        for end in range(self._block, len(ids) + 1, self._block):
            key = hash((key, tuple(ids[end - self._block : end])))  # a block is known by all that comes before it
            missed = missed or key not in self._known
            self._known.add(key)
            if not missed and end < len(ids):
                found = end
        return found
