"""A Ray to run on, quiet, and its errors turned back into ours."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence

import ray
from ray.data import DataContext

from lancer.config import RayConfig
from lancer.errors import EngineError, LancerError, unforeseen
from lancer.pipeline import hardware
from lancer.pipeline.hardware import Need


@contextlib.contextmanager
def ray_session(config: RayConfig, needs: Sequence[Need]) -> Iterator[None]:
    """The caller's Ray, the cluster's, or a local one for this run. PlanError when what is needed does not fit.

    Errors that Ray wraps come out as what a worker raised; others as EngineError.
    """
    mine = not ray.is_initialized()
    _quieten()
    if mine:
        handler = signal.getsignal(signal.SIGTERM)
        _start(config, needs)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)  # Ray puts one of its own there, which exits without cleaning up
    try:
        total: dict[str, float] = ray.cluster_resources()
        hardware.check_fits(needs, total.get("CPU", 0.0), total.get("GPU", 0.0), "the cluster")
        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.verbose_progress = False
        try:
            yield
        except ray.exceptions.RayError as error:
            raise own_error(error) from error
    finally:
        if mine:
            ray.shutdown()


def _start(config: RayConfig, needs: Sequence[Need]) -> None:
    address = config.address or os.environ.get("RAY_ADDRESS")
    if address is None:
        hardware.check_fits(needs, *hardware.this_machine(config.num_cpus), "this machine")
        # "local": without an address it would join any cluster that `ray start` has started on this machine
        ray.init(
            "local",
            num_cpus=config.num_cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
    else:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)


def _quieten() -> None:
    """Ray's own lines on every start are not for the users of a run; its warnings of trouble still come."""
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    for name in ("ray.data._internal.progress", "ray._private.authentication"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # What ends a run is raised, and told by who catches it.
    for name in ("ray.data.exceptions", "ray.data._internal.execution.streaming_executor"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def own_error(error: BaseException) -> BaseException:
    """The error of lancer that a worker raised, out of Ray's wrappings.

    Else what nobody foresaw, as a LancerError; else, of Ray itself, an EngineError that tells the cause.
    """
    seen: list[BaseException] = []
    queue: list[BaseException | None] = [error]
    while queue:
        at = queue.pop()
        if at is None or at in seen:
            continue
        if isinstance(at, LancerError) and not isinstance(at, ray.exceptions.RayError):
            return at
        seen.append(at)
        queue.extend([at.__cause__, getattr(at, "cause", None)])
    others = [at for at in seen if not type(at).__module__.startswith("ray.")]
    if others:
        return LancerError(unforeseen(others[-1]))
    return EngineError(f"a worker failed: {seen[-1]}")
