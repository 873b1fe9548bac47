from __future__ import annotations

import os
from pathlib import Path

import pytest

from lancer.errors import PlanError
from lancer.pipeline import hardware
from lancer.pipeline.hardware import Need, check_fits, this_machine
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.plan import Plan, make_plan
from lancer.pipeline.resume import find_work
from lancer.pipeline.store import RunStore
from lancer.storage import Storage
from tests.pipeline.folders import RunMaker
from tests.pipeline.small import small_config

JUDGED = (
    "decompose={source: llm, engine: writer}",
    "estimate=null",
    "judge.engine=judge",
    "select.selectors=[sum]",
    "engines.writer={kind: synthetic, replicas: 2}",
    "engines.judge={kind: synthetic, replicas: 2}",
)


def plan_of(folder: Path, *overrides: str) -> Plan:
    config = small_config(folder, *overrides)
    return make_plan(config, read_inputs(config, Storage()), Storage())


def needs(plan: Plan) -> list[Need]:
    """With what is in its output folder."""
    return hardware.needs(plan, find_work(plan, RunStore(Storage(), plan.config.output)))


def test_a_plan_needs_its_pools_and_its_workers(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "engines.scorer.replicas=3", "engines.scorer.num_gpus=0.5", "ray.workers=4")
    assert needs(plan) == [Need("scorer", "bi-encoder", 3, 0.5, 0.5), Need("workers", "shards", 4, 0.25, 0)]


def test_engines_that_no_stage_uses_need_nothing(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "engines.idle={kind: synthetic, num_cpus: 64}")
    assert [n.what for n in needs(plan)] == ["scorer", "workers"]


def test_equal_engines_are_one_pool(tmp_path: Path) -> None:
    assert [(n.what, n.count) for n in needs(plan_of(tmp_path, *JUDGED))] == [("writer = judge", 2), ("workers", 2)]
    apart = plan_of(tmp_path, *JUDGED, "engines.judge.seed=1")
    assert [(n.what, n.count) for n in needs(apart)] == [("writer", 2), ("judge", 2), ("workers", 2)]


def test_what_does_not_fit_is_refused_with_the_sum(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "engines.scorer.replicas=2", "engines.scorer.num_gpus=1")
    check_fits(needs(plan), 1.5, 2, "this machine")
    with pytest.raises(PlanError) as error:
        check_fits(needs(plan), 1, 2, "this machine")
    assert str(error.value).startswith(
        "the plan needs 1.5 CPUs, this machine has 1: 2 x 0.5 (scorer) + 2 x 0.25 (workers); lower "
    )
    with pytest.raises(PlanError, match=r"the plan needs 2 GPUs, the cluster has 1: 2 x 1 \(scorer\); lower"):
        check_fits(needs(plan), 64, 1, "the cluster")


def test_stages_that_are_finished_need_nothing(tmp_path: Path) -> None:
    run = RunMaker(tmp_path, "engines.llm.num_cpus=64")
    assert [n.what for n in needs(run.plan)] == ["llm", "workers"]
    for shard in run.plan.shards:
        run.shard(shard)
    other = RunMaker(tmp_path, "engines.llm.num_cpus=64", "select.selectors=[max]")
    assert [n.what for n in needs(other.plan)] == ["workers"], "a new selector over a finished matrix"
    parts = find_work(run.plan, run.store).parts
    Path(next(uri for (stage, _), uri in parts.items() if stage == "judge")).unlink()
    assert [n.what for n in needs(other.plan)] == ["llm", "workers"]


def test_this_machine_has_the_cores_that_this_process_may_use() -> None:
    assert this_machine(3)[0] == 3.0
    assert this_machine(None)[0] == len(os.sched_getaffinity(0))
