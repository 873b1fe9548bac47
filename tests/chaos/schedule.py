"""What is killed, in which order: drawn from a seed, at least a third of it between writing and committing a file."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Literal

Victim = Literal["driver", "worker", "actor", "node"]

# What processes commit, as a part of its URI.
BY_WORKERS: Final = (
    "/retrieve-",
    "/decompose-",
    "/judge-",
    "/select-",
    "calls/",
    "ranking.parquet/",
    "coverage.parquet/",
    "ledger.parquet/",
    "failures.parquet/",
)
BY_DRIVER: Final = ("run.json", "queries.parquet", "sessions/", "run.trec", "first_stage.trec")


@dataclass(frozen=True)
class Kill:
    """One kill -9: of a victim `delay_s` after it is there, or of whoever commits `what`, before or after it does."""

    victim: Victim
    delay_s: float = 0.0
    what: str = ""
    when: str = ""

    @property
    def injected(self) -> bool:
        """Whether it strikes between writing and committing."""
        return bool(self.what)

    def __str__(self) -> str:
        return f"{self.victim} {self.when} committing {self.what}" if self.what else f"{self.victim} at work"


def draw(kills: int, seed: int) -> list[Kill]:
    """So many kills: two of five injected, three of four of these in workers; the others on all victims in turn."""
    chance = random.Random(seed)
    injected = -(-2 * kills // 5)
    in_drivers = injected // 4
    drawn = [
        Kill("worker", what=chance.choice(BY_WORKERS), when=chance.choice(("before", "after")))
        for _ in range(injected - in_drivers)
    ]
    drawn += [
        Kill("driver", what=chance.choice(BY_DRIVER), when=chance.choice(("before", "after")))
        for _ in range(in_drivers)
    ]
    victims: tuple[Victim, ...] = ("driver", "actor", "node", "worker")
    first = chance.randrange(4)
    for i in range(kills - injected):
        victim = victims[(first + i) % 4]
        drawn.append(Kill(victim, delay_s=chance.uniform(0.0, 2.0)))
    chance.shuffle(drawn)
    return drawn
