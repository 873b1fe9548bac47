"""How fast this processor multiplies matrices in a type: what a list of its instructions does not tell.

Measured, per thread: with AVX512_BF16 and without AMX one processor had 155 GFLOP/s in float32 and 86 in bfloat16,
another 115 (270 with packed weights) and 520.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def product_rate(dtype: torch.dtype) -> float:
    """GFLOP/s of a product of MiniLM's shape: the best of a few, some milliseconds."""
    import torch

    x, w = (torch.ones(rows, 384, dtype=dtype) for rows in (256, 1536))
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        torch.nn.functional.linear(x, w)
        best = min(best, time.perf_counter() - started)
    return 2 * 256 * 384 * 1536 / best / 1e9


def bfloat16_is_faster() -> bool:
    """Than float32, here. Never near: .3 to .6 times as fast where it is slower, 2 to 5 times where it is faster."""
    import torch

    return product_rate(torch.bfloat16) > product_rate(torch.float32)
