"""Fixtures that all tests share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Before torch and Ray are loaded, and for processes that tests start: on two busy cores, threads that spin while they
# wait and workers that Ray makes nice make some tests four times as slow.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("RAY_worker_niceness", "0")

settings.register_profile("no-deadline", deadline=None)  # others may keep the machine busy
settings.load_profile("no-deadline")

pytest_plugins = ["tests.s3_servers"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of two processes one has all tests that use Ray: it gives a node 30 s to start, too few for several at once.

    A file's other tests stay together, as they share fixtures.
    """
    for item in items:
        ray = item.get_closest_marker("ray") is not None
        item.add_marker(pytest.mark.xdist_group("ray" if ray else item.path.stem))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout; it is not part of the repository."""
    folder = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the real data in ../shared/data, which is absent ({folder})")
    return folder


@pytest.fixture(scope="session")
def session_ray(s3_credentials: dict[str, str]) -> Iterator[None]:
    """One local Ray of two CPUs for all tests; its workers know the test's object-store credentials."""
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    yield
    ray.shutdown()
