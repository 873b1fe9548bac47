"""The type of numbers that a processor is fast in is found by measuring."""

from __future__ import annotations

import pytest

from lancer.engines import vllm_engine
from lancer.engines.product_rate import ProductRates, product_rates
from lancer.engines.vllm_engine import Dtype, VllmConfig, dtype_on_cpu

torch = pytest.importorskip("torch")


def test_rates_are_measured_by_one_thread() -> None:
    before = torch.get_num_threads()
    rates = product_rates()
    assert 1 < rates.float32 < 1e5
    assert 1 < rates.bfloat16 < 1e5
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("rates", "asked", "given"),
    [
        (ProductRates(float32=155.0, bfloat16=86.0), "auto", "float32"),
        (ProductRates(float32=270.0, bfloat16=520.0), "auto", "bfloat16"),
        (ProductRates(float32=155.0, bfloat16=86.0), "bfloat16", "bfloat16"),
        (ProductRates(float32=155.0, bfloat16=520.0), "float32", "float32"),
    ],
)
def test_vllm_computes_in_the_faster_type_unless_told(
    rates: ProductRates, asked: Dtype, given: Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "product_rates", lambda: rates)
    assert dtype_on_cpu(VllmConfig(model="embedded:smollm2", dtype=asked)) == given
