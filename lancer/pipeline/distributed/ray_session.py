"""A Ray to run on, quiet, and its errors turned back into ours."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Final

import ray
from ray.data import DataContext

from lancer.config import RayConfig
from lancer.errors import EngineError, LancerError, unforeseen
from lancer.pipeline import hardware
from lancer.pipeline.hardware import Need

KNOCK_S: Final = 10.0


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
        with _told(
            "Ray did not start on this machine (its processes have 30 s for that; a busy machine may need calm)"
        ):
            # "local": without an address it would join any cluster that `ray start` has started on this machine
            ray.init(
                "local",
                num_cpus=config.num_cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
    else:
        with _told(f"no Ray can be reached at {address}"):
            _knock(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)


def _knock(address: str) -> None:
    """OSError where nobody listens at HOST:PORT: Ray itself waits a minute there, and ends the process."""
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal() and "//" not in address:
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_S).close()


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Whatever Ray raises where it does not start, as an EngineError."""
    try:
        yield
    except Exception as error:  # its time-out at the start has no class of its own
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise EngineError(f"{what}: {reason.rstrip('.')}; nothing is lost, the same command goes on") from error


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
