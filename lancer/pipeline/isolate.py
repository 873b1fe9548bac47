"""When an engine dies under a shard: its queries go again one by one, alone in the engine, and only one that kills it
there, again and again, is set aside. Those that merely shared the engine are not blamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.protocols import (
    Block,
    Documents,
    Generation,
    Hit,
    Message,
    PairScorer,
    Sampling,
    ScoredBlock,
    SearchEngine,
    TextEngine,
)
from lancer.errors import EngineDied
from lancer.stages.base import Engines, Stage, StageOutput, call
from lancer.stages.records import Failure, LedgerRecord

POISON = "poison"  # reason of a query that was set aside; one of QUERY_REASONS


def call_isolating(
    stage: Stage, batch: pa.Table, engines: Engines, *, alone: Callable[[], Engines], attempts: int
) -> tuple[pa.Table, StageOutput]:
    """`lancer.stages.base.call`, or what is left of it when an engine dies: every row is there.

    `alone` gives the engines for calls that nothing else runs beside. A row that kills the engine `attempts` times
    there gets what the stage makes of failed calls, and a failure record.
    """
    try:
        return call(stage, batch, engines)
    except EngineDied:
        pass
    tables: list[pa.Table] = []
    ledger: list[LedgerRecord] = []
    failures: list[Failure] = []
    for i in range(batch.num_rows):
        table, output, died = _alone(stage, batch.slice(i, 1), engines, alone(), attempts)
        tables.append(table)
        ledger.extend(output.ledger)
        failures.extend(output.failures)
        if died:
            query_id = batch["query_id"][i].as_py()
            detail = f"set aside: alone in the engine, it killed it {attempts} times: {died}"
            failures.append(
                Failure(query_id=query_id, stage=stage.name, attempt=attempts, reason=POISON, detail=detail)
            )
    columns = pa.concat_tables(tables).combine_chunks()
    return columns, StageOutput({}, ledger, failures)


def _alone(
    stage: Stage, row: pa.Table, engines: Engines, alone: Engines, attempts: int
) -> tuple[pa.Table, StageOutput, str]:
    died = ""
    for _ in range(attempts):
        try:
            return (*call(stage, row, alone), "")
        except EngineDied as error:
            died = str(error)
    return (*call(stage, row, FailedEngines(engines, died)), died)


class FailedEngines:
    """Engines whose every call fails: what a stage makes of a query that was set aside."""

    def __init__(self, engines: Engines, reason: str) -> None:
        self._engines, self._reason = engines, reason

    def text(self, name: str) -> TextEngine:
        """Fails every prompt."""
        return _FailedText(self._reason)

    def scorer(self, name: str) -> PairScorer:
        """Scores NaN."""
        return _FailedScorer()

    def search(self, name: str) -> SearchEngine:
        """Finds nothing."""
        return _FailedSearch()

    def documents(self) -> Documents:
        """Document text, which is no call."""
        return self._engines.documents()

    def context(self, name: str) -> int | None:
        """Not known, so that nothing is counted or cut for calls that are not made."""
        return None

    def tokens(self, name: str) -> ChatTokens | None:
        """Not known."""
        return None


class _FailedText:
    def __init__(self, reason: str) -> None:
        self._reason = reason

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        return [Generation(text="", error=self._reason, finish="error") for _ in prompts]


class _FailedScorer:
    def score(self, blocks: Sequence[Block]) -> list[ScoredBlock]:
        return [
            ScoredBlock(
                scores=np.full((len(b.documents), len(b.sub_questions)), np.nan, np.float32),
                tokens=0,
                queue_s=0.0,
                run_s=0.0,
            )
            for b in blocks
        ]


class _FailedSearch:
    def search(self, queries: Sequence[str], depth: int) -> list[list[Hit]]:
        return [[] for _ in queries]
