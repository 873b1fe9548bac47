"""lancer: offline reranking for nugget coverage, at cluster scale.

The Python API is what the command does: `run(load_config("configs/demo.yaml"))`, `select(matrix, spec)`,
`evaluate(rankings, qrels, measures)`. Imports are made on call, so that `import lancer` costs nothing on a worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from lancer.config import Config
    from lancer.evaluation.measures import Evaluation, Ranking
    from lancer.formats.qrels import Qrel
    from lancer.pipeline.summary import RunResult
    from lancer.selection import CoverageMatrix, Selection

__version__ = "0.1.0"


def load_config(path: str, overrides: Iterable[str] = ()) -> Config:
    """A YAML file with `key.path=value` overrides; see `lancer.config.load_config`."""
    from lancer.config import load_config

    return load_config(path, overrides)


def run(
    config: Config,
    *,
    mode: Literal["resume", "overwrite", "fail-if-exists"] = "resume",
    retry_failed: bool = False,
) -> RunResult:
    """Carries out a run, or what is missing of it; see `lancer.pipeline.distributed.runner.run`."""
    from lancer.pipeline.distributed.runner import run

    return run(config, mode=mode, retry_failed=retry_failed)


def select(matrix: CoverageMatrix, spec: str) -> Selection:
    """The ranking of one query's candidates by a selector, e.g. `greedy-coverage(tau=3)`; see `lancer.selection`."""
    from lancer.selection import parse_selector

    return parse_selector(spec).select(matrix)


def evaluate(rankings: Mapping[str, Ranking], qrels: Sequence[Qrel], measures: str) -> Evaluation:
    """The measures of one run, by query and in the mean; see `lancer.evaluation.measures`."""
    from lancer.evaluation.measures import evaluate, parse_measures

    return evaluate(rankings, qrels, parse_measures(measures))
