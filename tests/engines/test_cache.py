"""The cache folder: where it is, and that a folder in it is built once, whole or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lancer.engines.cache import building, cache_dir
from lancer.errors import SetupError


def test_own_variable_wins_then_xdg_then_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("LANCER_CACHE", "/own")
    assert cache_dir() == Path("/own")
    monkeypatch.setenv("LANCER_CACHE", "~/models")
    assert cache_dir() == tmp_path / "models"
    monkeypatch.delenv("LANCER_CACHE")
    assert cache_dir() == Path("/xdg/lancer")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the XDG rules: to be ignored
    assert cache_dir() == tmp_path / ".cache" / "lancer"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == tmp_path / ".cache" / "lancer"


def test_many_at_once_build_one_folder(tmp_path: Path) -> None:
    folder, built = tmp_path / "deep" / "index", []

    def want() -> None:
        with building(folder) as scratch:
            if scratch is not None:
                built.append(scratch)
                (scratch / "file").write_text("whole")
                assert not folder.exists()

    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert (folder / "file").read_text() == "whole"
    assert not built[0].exists()


def test_a_failed_build_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    folder = tmp_path / "index"

    def fail() -> None:
        with building(folder) as scratch:
            assert scratch is not None
            (scratch / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    with building(folder) as scratch:
        assert scratch is not None
        assert list(scratch.iterdir()) == []
    assert folder.is_dir()


def test_what_a_killed_builder_left_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "index.building").mkdir()
    (tmp_path / "index.building" / "half").touch()
    with building(tmp_path / "index") as scratch:
        assert scratch is not None
        (scratch / "file").touch()
    assert [path.name for path in (tmp_path / "index").iterdir()] == ["file"]


def test_an_incomplete_folder_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "damaged").touch()
    with building(folder, complete=lambda path: (path / "good").exists()) as scratch:
        assert scratch is not None
        (scratch / "good").touch()
    assert [path.name for path in folder.iterdir()] == ["good"]


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="LANCER_CACHE"), building(tmp_path / "file" / "models" / "x"):
        pass
