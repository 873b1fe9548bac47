"""When an engine dies under a shard or fails at it, its worker dies, or a stage fails in a way that nobody foresaw: the
shard's queries go again one by one, and only one that does the same by itself is set aside; one that kills, when it has
done so again and again. Those that merely were beside it are not blamed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

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
from lancer.errors import CallFailed, EngineDied, LancerError, unforeseen
from lancer.stages.base import Engines, Stage, StageOutput, call, input_digests
from lancer.stages.records import Failure

log = logging.getLogger(__name__)

# Reasons of queries that were set aside, all among QUERY_REASONS.
POISON: Final = "poison"
ENGINE_ERROR: Final = "engine_error"
UNFORESEEN: Final = "unforeseen"


def call_isolating(
    stage: Stage, batch: pa.Table, engines: Engines, *, alone: Callable[[], Engines], attempts: int
) -> tuple[pa.Table, StageOutput]:
    """`lancer.stages.base.call`, or what is left of it when it fails: every row is there.

    `alone` gives the engines for calls that nothing else runs beside. A row that kills the engine `attempts` times
    there, or fails by itself, gets what the stage makes of failed calls, and a failure record. What concerns more than
    a row is raised: every other error of `lancer.errors`, and what a stage raises without any engine too.
    """
    try:
        return call(stage, batch, engines)
    except Exception as error:
        if not _may_be_of_a_row(error):
            raise
        log.warning("stage %r: its queries go one by one, after %s", stage.name, unforeseen(error))
    return _joined([_alone(stage, row, alone(), attempts) for row in _rows(batch)])


def call_one_by_one(
    stage: Stage,
    batch: pa.Table,
    engines: Engines,
    *,
    alone: Callable[[], Engines],
    attempts: int,
    begin: Callable[[str], bool],
) -> tuple[pa.Table, StageOutput]:
    """The same where workers die: `begin` is told of each row's query before it begins, and says whether it may.

    A row that may not gets what the stage makes of failed calls and empty documents, and a failure record.
    """
    results = []
    for row in _rows(batch):
        if begin(row["query_id"][0].as_py()):
            results.append(call_isolating(stage, row, engines, alone=alone, attempts=attempts))
        else:
            why = f"by itself, it killed its worker {attempts} times"
            results.append(_set_aside(stage, row, why, attempt=attempts))
    return _joined(results)


def _rows(batch: pa.Table) -> list[pa.Table]:
    return [batch.slice(i, 1) for i in range(batch.num_rows)]


def _joined(results: list[tuple[pa.Table, StageOutput]]) -> tuple[pa.Table, StageOutput]:
    columns = pa.concat_tables([table for table, _ in results]).combine_chunks()
    ledger = [record for _, output in results for record in output.ledger]
    return columns, StageOutput({}, ledger, [failure for _, output in results for failure in output.failures])


def _alone(stage: Stage, row: pa.Table, engines: Engines, attempts: int) -> tuple[pa.Table, StageOutput]:
    died = ""
    for _ in range(attempts):
        try:
            return call(stage, row, engines)
        except EngineDied as error:
            died = str(error)
        except Exception as error:
            if not _may_be_of_a_row(error):
                raise
            return _failed(stage, row, error)
    why = f"alone in the engine, it killed it {attempts} times: {died}"
    return _set_aside(stage, row, why, attempt=attempts)


def _may_be_of_a_row(error: Exception) -> bool:
    return isinstance(error, EngineDied | CallFailed) or not isinstance(error, LancerError)


def _failed(stage: Stage, row: pa.Table, error: Exception) -> tuple[pa.Table, StageOutput]:
    of_engine = isinstance(error, CallFailed)
    try:
        return _set_aside(
            stage,
            row,
            str(error) if of_engine else unforeseen(error),
            reason=ENGINE_ERROR if of_engine else UNFORESEEN,
        )
    except Exception:  # noqa: BLE001 - the stage fails whatever engines say: nothing can take the row's place
        raise error from None


def _set_aside(
    stage: Stage, row: pa.Table, why: str, *, reason: str = POISON, attempt: int = 1
) -> tuple[pa.Table, StageOutput]:
    table, output = call(stage, row, FailedEngines(f"set aside: {why}"))
    ((query_id, digest),) = input_digests(stage, row, row["query_id"].to_pylist()).items()
    failure = Failure(
        query_id=query_id,
        stage=stage.name,
        attempt=attempt,
        reason=reason,
        detail=f"set aside: {why}",
        input_digest=digest,
    )
    return table, StageOutput({}, output.ledger, [*output.failures, failure])


class FailedEngines:
    """Engines whose every call fails, and documents without words: with them a stage makes of a query that was set
    aside what it makes of failed calls, and its texts, which may be what kills, are left alone."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

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
        """Nothing to read in any."""
        return _EmptyDocuments()

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


class _EmptyDocuments:
    def texts(self, doc_ids: Sequence[str]) -> list[str | None]:
        return ["" for _ in doc_ids]
