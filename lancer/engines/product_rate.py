"""How fast this processor multiplies matrices in a type: what a list of its instructions does not tell.

Measured, GFLOP/s of one thread in float32 and bfloat16: an Ice Lake Xeon, without instructions for bfloat16, 179 and
61; a processor with AVX512_BF16 and without AMX 155 and 86; an EPYC with AVX512_BF16 270 and 520.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from lancer.engines.packed_encoders import Linear, Placement

ROUNDS = 20


@dataclass(frozen=True)
class ProductRates:
    """GFLOP/s of one thread."""

    float32: float
    bfloat16: float

    @property
    def bfloat16_is_faster(self) -> bool:
        """Than float32."""
        return self.bfloat16 > self.float32


def product_rates() -> ProductRates:
    """Of products of MiniLM's shape, the best of many: 30 milliseconds, a tenth of a second for a type without
    instructions. The types take turns, as other work on the machine comes and goes."""
    import torch

    sides = []
    for dtype in (torch.float32, torch.bfloat16):
        weight, rows = torch.ones(1536, 384, dtype=dtype), torch.ones(256, 384, dtype=dtype)
        sides.append((Linear(weight, None, packed=Placement("cpu", dtype).packs), rows))
    best = [float("inf")] * len(sides)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(ROUNDS):
            for i, (layer, rows) in enumerate(sides):
                started = time.perf_counter()
                layer(rows)
                best[i] = min(best[i], time.perf_counter() - started)
    finally:
        torch.set_num_threads(threads)
    return ProductRates(*(2 * 256 * 384 * 1536 / seconds / 1e9 for seconds in best))
