"""Without the optional package, its ids give an error that says what to install."""

from __future__ import annotations

import importlib.util

import pytest

from lancer.errors import SetupError
from lancer.formats.ir_datasets_ids import ir_datasets_qrels, ir_datasets_requests


@pytest.mark.skipif(importlib.util.find_spec("ir_datasets") is not None, reason="ir_datasets is installed")
def test_missing_package() -> None:
    for read in (ir_datasets_requests, ir_datasets_qrels):
        with pytest.raises(SetupError, match="pip install ir_datasets"):
            read("vaswani")
