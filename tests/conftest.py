"""Fixtures that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["tests.s3_servers"]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout; it is not part of the repository."""
    folder = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the real data in ../shared/data, which is absent ({folder})")
    return folder
