"""lancer: offline reranking for nugget coverage, at cluster scale.

The Python API is what the command does: `run(load_config("configs/demo.yaml"))`. Imports are made on call, so that
`import lancer` costs nothing on a worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lancer.config import Config
    from lancer.pipeline.summary import RunResult

__version__ = "0.1.0"


def load_config(path: str, overrides: Iterable[str] = ()) -> Config:
    """A YAML file with `key.path=value` overrides; see `lancer.config.load_config`."""
    from lancer.config import load_config

    return load_config(path, overrides)


def run(config: Config, *, mode: Literal["resume", "overwrite", "fail-if-exists"] = "resume") -> RunResult:
    """Carries out a run, or what is missing of it; see `lancer.pipeline.distributed.runner.run`."""
    from lancer.pipeline.distributed.runner import run

    return run(config, mode=mode)
