from __future__ import annotations

import os

import pytest

from lancer.engines.cores import own_cores


def test_replicas_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    assert [own_cores(replicas) for replicas in (1, 2, 4, 9)] == [6, 3, 1, 1]
