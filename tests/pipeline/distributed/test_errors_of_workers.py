"""What a worker raises reaches the driver as an error of lancer, with the exit code that the README promises."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pyarrow as pa
import pytest
import ray

from lancer.errors import CallFailed, EngineError, InputError, LancerError
from lancer.pipeline.distributed.dataset import _guarded, raise_error
from lancer.pipeline.distributed.ray_session import own_error
from lancer.stages.base import check_chain

TABLE = pa.table({"query_id": ["q"]})


def passed_on(step: Callable[[pa.Table], pa.Table]) -> LancerError:
    """What the driver raises when a step of the pipeline does."""

    (row,) = _guarded(step, TABLE).to_pylist()
    with pytest.raises(LancerError) as raised:
        raise_error(row["error"])
    return raised.value


def test_an_error_of_lancer_stays_what_it_is() -> None:
    def step(table: pa.Table) -> pa.Table:
        raise InputError("is empty", file="x.tsv")

    error = passed_on(step)
    assert isinstance(error, InputError)
    assert (str(error), error.exit_code) == ("x.tsv: is empty", 3)
    failed = pickle.loads(pickle.dumps(CallFailed("no memory", answered={})))
    assert (type(failed), str(failed)) == (CallFailed, "no memory")


def test_what_nobody_foresaw_has_code_1_and_its_place() -> None:
    def step(table: pa.Table) -> pa.Table:
        check_chain([None], pa.schema([]))  # type: ignore[list-item]
        return table

    error = passed_on(step)
    assert error.exit_code == 1
    assert "AttributeError: 'NoneType' object has no attribute 'reads' (lancer/stages/base.py:" in str(error)
    assert ", in check_chain)" in str(error)


def test_errors_of_ray_itself_are_left_to_ray() -> None:
    def step(table: pa.Table) -> pa.Table:
        raise ray.exceptions.WorkerCrashedError

    with pytest.raises(ray.exceptions.WorkerCrashedError):
        _guarded(step, TABLE)


def task_error(cause: Exception) -> BaseException:
    error: BaseException = ray.exceptions.RayTaskError("map", "Traceback ...", cause).as_instanceof_cause()
    return error


def test_out_of_rays_wrappings() -> None:
    mine, foreign = own_error(task_error(InputError("is empty"))), own_error(task_error(ValueError("odd")))
    assert isinstance(mine, InputError)
    assert (type(foreign), str(foreign)) == (LancerError, "ValueError: odd")
    crashed = own_error(task_error(ray.exceptions.WorkerCrashedError()))
    assert isinstance(crashed, EngineError)
    assert str(crashed).startswith("a worker failed: ")
