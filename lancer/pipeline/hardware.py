"""What a plan needs and what there is: refuses what would starve before anything starts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from lancer.errors import PlanError
from lancer.pipeline.plan import Plan
from lancer.pipeline.resume import Work


@dataclass(frozen=True)
class Need:
    """One line of the plan's hardware: `count` processes of so many CPUs and GPUs each."""

    what: str
    kind: str
    count: int
    cpus: float
    gpus: float


def engines_needed(plan: Plan, work: Work) -> list[str]:
    """The engines that stages with work left call, and the index where it holds the documents' texts."""
    if not work.todo:
        return []
    names = dict.fromkeys(name for p in plan.stages if work.needs(p.name) for name in p.stage.engines)
    if plan.source.kind == "index":
        names[plan.source.location] = None
    return list(names)


def needs(plan: Plan, work: Work) -> list[Need]:
    """The engine pools, one per distinct config of those needed, and the workers that carry shards. Nothing for what is
    finished: a new selector over a finished matrix needs no GPU."""
    if not work.todo:
        return []
    pools: dict[str, list[str]] = {}
    for name in engines_needed(plan, work):
        pools.setdefault(plan.config.engines[name].model_dump_json(), []).append(name)
    ray = plan.config.ray
    return [
        *(_pool(plan, names) for names in pools.values()),
        Need("workers", "shards", ray.workers, ray.worker_cpus, 0),
    ]


def _pool(plan: Plan, names: list[str]) -> Need:
    config = plan.config.engines[names[0]]
    gpus = getattr(config, "num_gpus", 0)
    return Need(" = ".join(names), config.kind, config.replicas, config.num_cpus, gpus)


def check_fits(wanted: Sequence[Need], cpus: float, gpus: float, where: str) -> None:
    """PlanError when the pools and workers together want more than there is."""
    for unit, have, total in (
        ("CPUs", cpus, sum(n.count * n.cpus for n in wanted)),
        ("GPUs", gpus, sum(n.count * n.gpus for n in wanted)),
    ):
        if total > have:
            parts = " + ".join(
                f"{n.count} x {n.cpus if unit == 'CPUs' else n.gpus:g} ({n.what})"
                for n in wanted
                if (n.cpus if unit == "CPUs" else n.gpus)
            )
            raise PlanError(
                f"the plan needs {total:g} {unit}, {where} has {have:g}: {parts}; "
                "lower replicas, num_cpus or num_gpus of an engine, or ray.workers"
            )


def this_machine(num_cpus: int | None) -> tuple[float, float]:
    """(CPUs, GPUs) that a local Ray would have; `num_cpus` as configured."""
    return float(num_cpus or len(os.sched_getaffinity(0))), float(gpu_count())


def gpu_count() -> int:
    """NVIDIA GPUs that the driver lists; 0 without a driver."""
    try:
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in found.stdout.splitlines())
