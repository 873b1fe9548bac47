"""Attention inside each sequence of a pack, without padding: what the layers of packed encoders call.

Sequences of equal length that stand together are one call of PyTorch's own attention, which runs everywhere; a pack
that is sorted by length has few such runs. On GPUs of at least compute capability 8.0 and in 16 bits, one call of
variable length flash attention does the whole pack (Dao, 2023).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Layout:
    """Where sequences lie in a pack: `lengths` of each, `starts` (sequences,) on the device; `varlen`: use flash."""

    lengths: Sequence[int]
    starts: torch.Tensor
    varlen: bool


def varlen_available(device: str, dtype: torch.dtype) -> bool:
    """Whether flash attention of variable length runs here."""
    import torch

    if device != "cuda" or dtype == torch.float32 or torch.cuda.get_device_capability() < (8, 0):
        return False
    try:
        from torch.nn.attention.varlen import varlen_attn  # noqa: F401
    except ImportError:  # torch < 2.10
        return False
    return True


def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, window: int | None = None
) -> torch.Tensor:
    """Attention of shape (queries, heads * size) from `key` and `value` of shape (tokens, heads, size).

    `query` has shape (tokens, heads, size), or (sequences, heads, size) for the first token of each sequence only.
    With a `window`, tokens at most so far apart see each other; it does not go with first tokens only.
    """
    if layout.varlen:
        return _varlen(query, key, value, layout, window)
    import torch

    outputs = []
    sequence = token = 0
    first_only = len(query) == len(layout.lengths)
    for length, group in itertools.groupby(layout.lengths):
        count = len(list(group))
        tokens = slice(token, token + count * length)
        rows = slice(sequence, sequence + count) if first_only else tokens
        outputs.append(_run(query[rows], key[tokens], value[tokens], count, window))
        sequence, token = sequence + count, tokens.stop
    return torch.cat(outputs)


def _run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, count: int, window: int | None) -> torch.Tensor:
    """`count` sequences of one length."""
    import torch

    query, key, value = (x.view(count, -1, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
    mask = None
    if window is not None and key.shape[2] > window + 1:
        at = torch.arange(key.shape[2], device=key.device)
        mask = (at[:, None] - at[None, :]).abs() <= window
    out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return out.transpose(1, 2).flatten(2).flatten(0, 1)


def _varlen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, layout: Layout, window: int | None
) -> torch.Tensor:
    import torch
    from torch.nn.attention.varlen import varlen_attn

    longest, sequences = max(layout.lengths), len(layout.lengths)
    ends = torch.nn.functional.pad(layout.starts[1:], (1, 1), value=0)
    ends[-1] = len(key)
    ends = ends.to(torch.int32)
    query_ends, longest_query = ends, longest
    if len(query) == sequences:
        query_ends, longest_query = torch.arange(sequences + 1, device=key.device, dtype=torch.int32), 1
    sides: dict[str, Any] = {} if window is None else {"window_size": (window, window)}  # torch 2.10 has no windows
    out = varlen_attn(query, key, value, query_ends, ends, longest_query, longest, **sides)
    assert isinstance(out, torch.Tensor)
    return out.flatten(1)
