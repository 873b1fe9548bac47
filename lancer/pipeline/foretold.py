"""A forecast in its run folder, and after the run what it said beside what came of it.

It lies there as `estimate.json`. It says what it is a forecast of, so that one of other settings or requests is never
shown beside this run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lancer.digests import digest
from lancer.errors import InputError, OutputError
from lancer.pipeline.cost import Cost, cost_of
from lancer.pipeline.folder import RunFolder
from lancer.pipeline.forecast import Forecast, StageForecast, forecast_of
from lancer.pipeline.pricing import HOUR_S, Sums
from lancer.pipeline.store import RunStore

ESTIMATE: Final = "estimate.json"


def check_folder(store: RunStore) -> None:
    """OutputError: the folder holds something else than a run."""
    if not store.storage.exists(store.uri("run.json")) and not store.only_ours():
        raise OutputError(f"{store.root} holds files, but no run.json: it is no run folder; choose another `output`")


def keep(found: Forecast, store: RunStore) -> None:
    """Writes it into the run folder."""
    store.storage.write(store.uri(ESTIMATE), json.dumps(found.as_dict(), indent=1).encode())


def kept(store: RunStore) -> Forecast | None:
    """The forecast in a run folder; None where there is none, or one of another version."""
    try:
        return forecast_of(json.loads(store.storage.read(store.uri(ESTIMATE))))
    except (InputError, ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class Compared:
    """A stage, or all: what was predicted, and what the ledger has; None = not known."""

    stage: str
    predicted: dict[str, float | None]
    actual: dict[str, float | None]


def compare(found: Forecast, cost: Cost) -> list[Compared]:
    """By stage and in total, of a finished run.

    Counts are of all answers, also of those that were there already; money and hours are what was really spent, over
    all sessions, on whatever became of it.
    """
    rows = [
        Compared(stage.stage, _predicted(stage), _actual(cost.stages[stage.stage]))
        for stage in found.stages
        if stage.engine and stage.stage in cost.stages
    ]
    duration: dict[str, float | None] = {"hours": None if found.duration_h is None else found.duration_h.value}
    wall: dict[str, float | None] = {"hours": sum(s.wall_s for s in cost.sessions) / HOUR_S}
    return [*rows, Compared("total", _predicted(found.total) | duration, _actual(cost.total) | wall)]


def identity(fingerprints: Iterable[str], requests_digest: str) -> str:
    """What a forecast is of: the stages with all that decides their calls, and the requests."""
    return digest([list(fingerprints), requests_digest])


def compare_kept(run: RunFolder) -> list[Compared]:
    """What the kept forecast of a run said beside what it came to; [] without one of it, or before it is finished."""
    requests = run.record.get("inputs", {}).get("requests_digest")
    found = kept(run.store) if requests and run.record.get("status") == "finished" else None
    if found is None or found.plan != identity((s["fingerprint"] for s in run.record["stages"]), requests):
        return []
    return compare(found, cost_of(run))


def _predicted(stage: StageForecast) -> dict[str, float | None]:
    return {
        "calls": stage.counts["calls"].value,
        "prompt_tokens": stage.counts["prompt_tokens"].value,
        "cached_share": stage.cached_share,
        "output_tokens": stage.counts["output_tokens"].value,
        "device_hours": None if stage.device_hours is None else stage.device_hours.value,
        "usd": None if stage.usd is None else stage.usd.value,
    }


def _actual(sums: Sums) -> dict[str, float | None]:
    prompt = sums.prompt_tokens + sums.reused_tokens - sums.reused_output_tokens
    return {
        "calls": sums.calls + sums.reused_calls,
        "prompt_tokens": prompt,
        "cached_share": (sums.cached_tokens + sums.reused_cached_tokens) / prompt if prompt else None,
        "output_tokens": sums.output_tokens + sums.reused_output_tokens,
        "device_hours": sums.device_s / HOUR_S,
        "usd": sums.money.known,
    }
