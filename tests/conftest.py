"""Fixtures that all tests share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before torch and Ray are loaded, and for processes that tests start: on two busy cores, threads that spin while they
# wait and workers that Ray makes nice make some tests four times as slow.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("RAY_worker_niceness", "0")

settings.register_profile("no-deadline", deadline=None)  # others may keep the machine busy
settings.load_profile("no-deadline")

pytest_plugins = ["tests.s3_servers"]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Clusters first, then what uses no Ray, then the session's Ray, with an LLM and without: the shortest last.

    So the processes end at about the same time.
    """
    items.sort(key=lambda item: (_turn(str(item.path)), -_runs(str(item.path))))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests stay together, as they share fixtures. So do those that start clusters: Ray gives a node 30 s to
    start, too few for several at once on two cores. And those that use vLLM in this process: to import it takes 20 s.

    (xdist's own groups do nothing in pytest 9.2.)
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return _group(str(config.rootpath / file)) or file

    return Scheduling(config, log)


@cache
def _group(file: str) -> str | None:
    text = Path(file).read_text("utf-8")
    if "mark.cluster" in text:
        return "clusters"
    return "vllm" if "mark.vllm" in text and "VllmEngine(" in text else None


@cache
def _runs(file: str) -> int:
    """How many runs a file may have: those take its time, most of all in processes of their own."""
    text = Path(file).read_text("utf-8")
    return text.count("run(") + 5 * text.count("Popen(") if _turn(file) == 3 else 0


@cache
def _turn(file: str) -> int:
    text = Path(file).read_text("utf-8")
    if "mark.cluster" in text:
        return 0
    if "mark.ray" not in text:
        return 1
    return 2 if "mark.vllm" in text else 3


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
