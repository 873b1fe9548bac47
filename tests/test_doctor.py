from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from lancer.doctor import Check, examine, render
from lancer.errors import UsageError


def found(checks: list[Check], what: str) -> Check:
    return next(check for check in checks if check.what == what)


def test_storage_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    check = examine(str(tmp_path / "runs"))[-1]
    assert (check.what, check.ok, check.remedy) == (f"storage {tmp_path}/runs", True, "")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_cache_folder_that_cannot_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LANCER_CACHE", str(tmp_path / "file" / "cache"))
    checks = examine()
    cache = found(checks, "cache folder")
    assert (cache.ok, cache.found) == (False, f"{tmp_path}/file/cache, not writable")
    assert cache.remedy == "set LANCER_CACHE to a folder that is"
    assert not found(checks, "model embedded:smollm2").ok
    assert all(bool(check.remedy) != check.ok for check in checks)


def test_an_endpoint_needs_a_place_in_it() -> None:
    with pytest.raises(UsageError, match="--endpoint is of an object store"):
        examine(None, "http://localhost:9000")


def test_the_report_shows_what_to_do() -> None:
    stream = io.StringIO()
    table = render([Check("Ray", True, "2.60.0"), Check("vLLM", False, "not installed", "install lancer[cpu]")])
    Console(file=stream, width=120, markup=False).print(table)
    rows = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    assert rows[1:] == ["ok Ray 2.60.0", "NO vLLM not installed install lancer[cpu]"]
