"""The cores of one replica of an engine on a CPU: replicas share a machine, and threads beyond its cores only wait."""

from __future__ import annotations

import os


def own_cores(replicas: int) -> int:
    """Of the cores that this process may use the share of one replica, at least one.

    Where replicas lie on several machines, `threads` in the config says it better.
    """
    return max(1, len(os.sched_getaffinity(0)) // replicas)
