"""What kills a worker is found by what was begun and not ended: first the shard, then its rows one by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from lancer.errors import EngineError
from lancer.pipeline import attempts
from lancer.pipeline.attempts import Attempts
from lancer.storage import Storage


def begun(root: Path, limit: int = 2) -> Attempts:
    """A worker that takes the shard up, knowing what those before it wrote."""
    own = Attempts.of(Storage(), str(root), "01", limit)
    own.begin()
    return own


def test_rows_go_one_by_one_after_as_many_deaths_as_allowed(tmp_path: Path) -> None:
    assert [begun(tmp_path).one_by_one for _ in range(4)] == [False, False, True, True]


def test_a_finished_shard_begins_anew(tmp_path: Path) -> None:
    for _ in range(3):
        begun(tmp_path)
    attempts.end(Storage(), str(tmp_path), "01")
    assert begun(tmp_path).starts == 1


def test_a_session_blames_nobody_for_the_end_of_another(tmp_path: Path) -> None:
    for _ in range(3):
        begun(tmp_path).begin_row("judge", "q1")
    attempts.clear(Storage(), str(tmp_path))
    own = begun(tmp_path)
    assert (own.starts, own.rows) == (1, {})


def test_only_the_row_that_was_being_worked_on_is_set_aside(tmp_path: Path) -> None:
    for death in (1, 2):
        own = begun(tmp_path)
        assert own.begin_row("judge", "q1"), death
        assert own.begin_row("judge", "q2"), "q1 has ended, q2 kills the worker"
    own = begun(tmp_path)
    assert own.begin_row("judge", "q1")
    assert not own.begin_row("judge", "q2")
    assert own.begin_row("judge", "q3")
    assert own.begin_row("select", "q2"), "another stage may do better with it"


def test_a_row_that_kills_in_vain_ends_the_run_with_its_name(tmp_path: Path) -> None:
    for _ in range(4):
        begun(tmp_path).begin_row("decompose", "q2")
    with pytest.raises(EngineError, match=r"query 'q2' killed its worker in stage 'decompose' 2 times.*take it out"):
        begun(tmp_path).begin_row("decompose", "q2")


def test_what_is_known_is_read_only_where_it_matters(tmp_path: Path) -> None:
    begun(tmp_path)
    begun(tmp_path).begin_row("judge", "q1")
    assert Attempts.of(Storage(), str(tmp_path), "01", 2, starts=2).rows == {}
    assert Attempts.of(Storage(), str(tmp_path), "01", 1, starts=2).rows == {"judge": {"q1": 1}}
