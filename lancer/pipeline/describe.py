"""A plan for people: what will run, on what, and whether it fits."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table

from lancer.config import load_config
from lancer.pipeline import hardware
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.plan import Plan
from lancer.pipeline.resume import Mode, Work, find_work, lines_on_reuse, plan_in
from lancer.pipeline.store import RunStore
from lancer.storage import Storage


def validated(path: str, overrides: Iterable[str]) -> Plan:
    """Reads and checks everything that can be checked without an engine, and on any machine."""
    return _planned(path, overrides, "resume")[0]


def plan_run(
    path: str, overrides: Iterable[str], mode: Mode = "resume", *, retry_failed: bool = False
) -> tuple[Plan, Work, list[str]]:
    """The same, what there is to do, checked against this machine's hardware, and lines on what stays and why not.

    The hardware only where the run would start a local Ray; a cluster's is checked when it is there.
    """
    plan, store, before = _planned(path, overrides, mode)
    nothing = Work({}, frozenset(), {}, plan.shards)
    work = nothing if mode == "overwrite" else find_work(plan, store, retry_failed=retry_failed)
    if plan.config.ray.address is None and "RAY_ADDRESS" not in os.environ:
        machine = hardware.this_machine(plan.config.ray.num_cpus)
        hardware.check_fits(hardware.needs(plan, work), *machine, "this machine")
    return plan, work, list(lines_on_reuse(plan, work, before))


def _planned(path: str, overrides: Iterable[str], mode: Mode) -> tuple[Plan, RunStore, dict[str, Any] | None]:
    config = load_config(path, overrides)
    storage = Storage(config.storage)
    store = RunStore(storage, config.output)
    plan, before = plan_in(store, config, read_inputs(config, storage), mode)
    return plan, store, before


@dataclass(frozen=True)
class Description:
    """`stages`: name, reads, adds, engines, fingerprint; `hardware`: one line per pool that is needed; `reuse`: lines
    on what the output folder holds and what of it has to be made again."""

    stages: list[dict[str, Any]]
    hardware: list[dict[str, Any]]
    queries: int
    shards: int
    documents: str
    output: str
    reuse: list[str]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def render(self) -> Group:
        """As tables."""
        stages = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("stage", "reads", "adds", "engine", "fingerprint"):
            stages.add_column(name)
        for s in self.stages:
            engines = ", ".join(s["engines"]) or "-"
            stages.add_row(s["name"], ", ".join(s["reads"]), ", ".join(s["adds"]), engines, s["fingerprint"][:12])
        pools = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("pool", "kind", "processes", "CPUs each", "GPUs each"):
            pools.add_column(name, justify="left" if name in ("pool", "kind") else "right")
        for h in self.hardware:
            pools.add_row(h["what"], h["kind"], str(h["count"]), f"{h['cpus']:g}", f"{h['gpus']:g}")
        cpus = sum(h["count"] * h["cpus"] for h in self.hardware)
        gpus = sum(h["count"] * h["gpus"] for h in self.hardware)
        last = (
            f"{self.queries} queries in {self.shards} shards, documents from {self.documents}; "
            f"needs {cpus:g} CPUs and {gpus:g} GPUs; output: {self.output}"
        )
        return Group(stages, "", pools, "", *self.reuse, *(f"note: {note}" for note in self.notes), last)


def describe(plan: Plan, work: Work, reuse: Sequence[str] = ()) -> Description:
    """The description of a plan with so much to do; `reuse` as of `plan_run`."""
    return Description(
        stages=[
            {
                "name": s.name,
                "reads": [f.name for f in s.stage.reads],
                "adds": [f.name for f in s.stage.adds],
                "engines": list(s.stage.engines),
                "fingerprint": s.fingerprint,
            }
            for s in plan.stages
        ],
        hardware=[asdict(need) for need in hardware.needs(plan, work)],
        queries=plan.inputs.table.num_rows,
        shards=len(plan.shards),
        documents=f"{plan.source.kind} {plan.source.location}",
        output=plan.config.output,
        reuse=list(reuse),
        notes=[*plan.inputs.notes, *_of_cascade(plan)],
    )


def _of_cascade(plan: Plan) -> list[str]:
    only = plan.config.judge.only if plan.config.judge else None
    if only is None:
        return []
    notes = [f"judge asks for {only}; the others keep the estimate"]
    others = [s for s in plan.selectors if only.until is not None and s != only.until.selector]
    if others:
        notes.append(f"judge.only.until does not look at {', '.join(others)}: ranked by a matrix judged for another")
    return notes
