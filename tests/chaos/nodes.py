"""A Ray of two nodes on this machine, of which the second can be lost. It is nobody else's."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

STORE_BYTES: Final = 80_000_000  # Ray's least


class Nodes:
    """The head, which drivers attach to, and one more node. Enough CPUs on either for the whole job."""

    def __init__(self, cluster: Any, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._add(1)
        self._second = self._add(2)

    @property
    def address(self) -> str:
        """For RAY_ADDRESS."""
        address: str = self._cluster.address
        return address

    @property
    def raylets(self) -> list[int]:
        """One process per node, the parent of its workers."""
        return [node.all_processes["raylet"][0].process.pid for node in self._cluster.list_all_nodes()]

    def lose_one(self) -> None:
        """kill -9 of everything on the second node; another takes its place."""
        self._cluster.remove_node(self._second, allow_graceful=False)
        self._second = self._add(2)

    def _add(self, cpus: int) -> Any:
        return self._cluster.add_node(
            num_cpus=cpus, object_store_memory=STORE_BYTES, include_dashboard=False, temp_dir=str(self._folder)
        )


@contextmanager
def two_nodes(folder: Path, environment: dict[str, str]) -> Iterator[Nodes]:
    """Their processes have `environment` beside this one's; `folder` has a short path (Ray puts sockets below it)."""
    with private_cluster(environment) as cluster:
        yield Nodes(cluster, folder)


@contextmanager
def private_cluster(environment: dict[str, str]) -> Iterator[Any]:
    """A `ray.cluster_utils.Cluster` without nodes, which no other process finds."""
    os.environ.update(
        environment
        | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
        }
    )
    import ray._private.utils
    from ray.cluster_utils import Cluster

    # It would note the address where every other ray.init() on this machine looks for a cluster to join.
    ray._private.utils.write_ray_address = lambda *address: None
    cluster = Cluster()
    try:
        yield cluster
    finally:
        cluster.shutdown()
