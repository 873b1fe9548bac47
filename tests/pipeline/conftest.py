"""Runs to disturb: a finished one, and one that a server rates."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import lancer
from tests.http_servers import serving
from tests.pipeline.judged import CALLS, calls, judged_config
from tests.pipeline.rated import Rater, Served


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, session_ray: None) -> Path:
    """A finished run of `judged_config`; tests work on copies of its folder."""
    folder = tmp_path_factory.mktemp("undisturbed")
    result = lancer.run(judged_config(folder))
    assert calls(result) == CALLS
    return folder


@pytest.fixture
def copied(undisturbed: Path, tmp_path: Path) -> Path:
    """The run folder of `undisturbed` to disturb, beside its inputs; the config's output is `tmp_path/run`."""
    shutil.copytree(undisturbed / "run", tmp_path / "run")
    return tmp_path


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    rater = Rater()
    with serving(rater) as server:
        yield Served(tmp_path, rater, server.base_url)
