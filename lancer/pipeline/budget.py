"""The budget of a run: what it may cost and how long it may take, over all its sessions. Knows no Ray.

A run that is started again after it was stopped, as job schedulers do, goes on spending: what counts is all that was
spent in its folder, by the clocks and counts of its engines, whatever became of their work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lancer.config import Config, LimitsConfig
from lancer.engines.protocols import EngineClock
from lancer.errors import BudgetError
from lancer.pipeline.cost import same_engines, uses_of
from lancer.pipeline.folder import Session
from lancer.pipeline.pricing import HOUR_S, EngineUse, Money


@dataclass(frozen=True)
class Spent:
    """`hours` are of the wall clock, while somebody carried the run out."""

    uses: tuple[EngineUse, ...]
    hours: float

    @property
    def money(self) -> Money:
        """Of all engines."""
        return sum((use.spent for use in self.uses), Money())


class Budget:
    """What earlier sessions spent, and what may be spent in all."""

    def __init__(self, config: Config, engines: Iterable[str], earlier: Sequence[Session]) -> None:
        self._limits, self._same = config.limits, same_engines(config)
        self._before = uses_of(config, engines, earlier)
        self._hours = sum(session.seconds for session in earlier) / HOUR_S

    def spent(self, clocks: Mapping[str, Sequence[EngineClock]], seconds: float) -> Spent:
        """With what this session's engines have done in its `seconds` so far."""
        uses = dict(self._before)
        for name, of in {self._same[name]: of for name, of in clocks.items()}.items():
            uses[name] = uses[name].with_clocks(of)
        return Spent(tuple(uses.values()), self._hours + seconds / HOUR_S)

    def check(self, clocks: Mapping[str, Sequence[EngineClock]], seconds: float) -> None:
        """BudgetError when it is used up; says by what."""
        spent = self.spent(clocks, seconds)
        used_up = exceeded(self._limits, spent.money.usd, spent.hours)
        if used_up:
            engines = ", ".join(f"{u.name} {u.spent.usd:,.2f}" for u in spent.uses if u.spent.known is not None)
            without = sorted(spent.money.without)
            raise BudgetError(
                f"the budget is used up: {'; '.join(used_up)}"
                + (f" (USD: {engines})" if engines else "")
                + (f"; without a price: {', '.join(without)}" if without and self._limits.usd else "")
                + "; what was finished is kept, and with a higher limit the same command goes on"
            )


def exceeded(limits: LimitsConfig, usd: float | None, hours: float | None) -> list[str]:
    """The limits that so much reaches, each with what reaches it; None = not known."""
    found = []
    if limits.usd is not None and usd is not None and usd >= limits.usd:
        found.append(f"USD {usd:,.2f} of limits.usd {limits.usd:g}")
    if limits.hours is not None and hours is not None and hours >= limits.hours:
        found.append(f"{hours:,.2f} hours of limits.hours {limits.hours:g}")
    return found
