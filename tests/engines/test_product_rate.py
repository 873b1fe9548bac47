"""The type of numbers that a processor is fast in is found by measuring."""

from __future__ import annotations

import pytest

from lancer.engines import product_rate
from lancer.engines.vllm_engine import Dtype, VllmConfig, dtype_on_cpu

torch = pytest.importorskip("torch")


def test_a_rate_is_measured() -> None:
    assert product_rate.product_rate(torch.float32) > 0
    assert product_rate.product_rate(torch.bfloat16) > 0


@pytest.mark.parametrize(
    ("rates", "asked", "given"),
    [
        ({torch.bfloat16: 86.0, torch.float32: 155.0}, "auto", "float32"),
        ({torch.bfloat16: 520.0, torch.float32: 115.0}, "auto", "auto"),
        ({torch.bfloat16: 86.0, torch.float32: 155.0}, "bfloat16", "bfloat16"),
    ],
)
def test_vllm_computes_in_float32_where_bfloat16_is_slower(
    rates: dict[object, float], asked: Dtype, given: Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product_rate, "product_rate", rates.__getitem__)
    assert dtype_on_cpu(VllmConfig(model="embedded:smollm2", dtype=asked)) == given
