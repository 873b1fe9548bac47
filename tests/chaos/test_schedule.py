"""The kills are those that were promised."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.schedule import draw


@pytest.mark.parametrize("kills", [1, 2, 3, 25, 40])
def test_at_least_a_third_strikes_between_write_and_commit_and_the_rest_everybody_alike(kills: int) -> None:
    for seed in range(20):
        drawn = draw(kills, seed)
        assert len(drawn) == kills
        assert 3 * sum(kill.injected for kill in drawn) >= kills
        others = Counter(kill.victim for kill in drawn if not kill.injected)
        assert not others or max(others.values()) - min(others[v] for v in ("driver", "worker", "actor", "node")) <= 1


def test_a_seed_says_all() -> None:
    assert draw(25, 7) == draw(25, 7)
    assert draw(25, 7) != draw(25, 8)
