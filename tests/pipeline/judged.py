"""A run whose sub-questions and ratings come from a synthetic LLM: no model, and every call is counted."""

from __future__ import annotations

from pathlib import Path

from lancer.config import Config
from lancer.pipeline.summary import RunResult
from tests.pipeline.small import DOCUMENTS, REQUESTS, small_config

N = 2  # sub-questions of a query
CALLS = {"decompose": len(REQUESTS), "judge": len(REQUESTS) * N * len(DOCUMENTS)}
ENGINE = f"{{kind: synthetic, questions: {N}}}"


def judged_config(folder: Path, *overrides: str) -> Config:
    """`small_config`, with one shard per query or so, its matrix by a judge; further overrides last."""
    return small_config(
        folder,
        f"decompose={{source: llm, n: {N}}}",
        "estimate=null",
        "judge={engine: llm}",
        f"engines={{llm: {ENGINE}}}",
        "select.selectors=[sum(tau=1)]",
        "shard_queries=1",
        *overrides,
    )


def again(folder: Path, finished: Path, *overrides: str) -> Config:
    """The config of the run in `finished`, with its inputs, writing into `folder`."""
    return judged_config(finished, f"output={folder}/run", *overrides)


def calls(result: RunResult) -> dict[str, int]:
    """Calls that were made now, by stage."""
    return {s.stage: s.calls for s in result.stages if s.stage in CALLS}


def reused_calls(result: RunResult) -> dict[str, int]:
    """Calls that were answered from journals."""
    return {s.stage: s.reused_calls for s in result.stages if s.stage in CALLS}


def run_bytes(run: Path) -> dict[str, bytes]:
    """What must not depend on how a run came about: its rankings, its coverage, its run files."""
    files = [run / "run.trec", run / "first_stage.trec", *(run / "ranking.parquet").iterdir()]
    files += (run / "coverage.parquet").iterdir()
    return {str(file.relative_to(run)): file.read_bytes() for file in files}
