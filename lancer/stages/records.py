"""What a stage reports beside its columns: what each query's calls cost, and what failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, TypedDict

import numpy as np

from lancer.engines.protocols import Generation, ScoredBlock

# Reasons for which a query counts as failed; others concern some of its cells or candidates.
QUERY_REASONS: Final = frozenset({"no_candidates", "no_sub_questions", "engine_error", "poison", "unforeseen"})

# Reasons that may lie in what an engine answered, so that the same call must not be answered with that again.
ANSWER_REASONS: Final = frozenset({"unreadable", "too_few", "no_sub_questions", "error"})


@dataclass(frozen=True, kw_only=True)
class LedgerRecord:
    """One (query, stage, attempt); the fields of `lancer.schema.LEDGER_SCHEMA`."""

    query_id: str
    stage: str
    attempt: int = 1
    engine: str = ""
    calls: int = 0
    pairs: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    queue_s: float = 0.0
    run_s: float = 0.0
    latency_p50_s: float | None = None
    latency_p95_s: float | None = None
    latency_max_s: float | None = None
    reused_calls: int = 0
    reused_tokens: int = 0
    reused_cached_tokens: int = 0
    reused_output_tokens: int = 0
    cut_inputs: int = 0

    def row(self) -> dict[str, object]:
        """As a row of the ledger table."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One thing that failed for one query; the fields of `lancer.schema.FAILURE_SCHEMA`.

    `input_digest` is filled in by the caller of the stage (`lancer.stages.base.call`).
    """

    query_id: str
    stage: str
    attempt: int = 1
    reason: str
    detail: str
    input_digest: str = ""

    def row(self) -> dict[str, object]:
        """As a row of the failures table."""
        return asdict(self)


def of_generations(
    generations: Sequence[Generation], *, query_id: str, stage: str, engine: str, attempt: int = 1, pairs: int = 0
) -> LedgerRecord:
    """Adds up the calls that one query made in one attempt; reused ones apart."""
    reused = [g for g in generations if g.reused]
    generations = [g for g in generations if not g.reused]
    return LedgerRecord(
        query_id=query_id,
        stage=stage,
        attempt=attempt,
        engine=engine,
        calls=len(generations),
        pairs=pairs,
        prompt_tokens=sum(g.prompt_tokens for g in generations),
        cached_tokens=sum(g.cached_tokens for g in generations),
        output_tokens=sum(g.output_tokens for g in generations),
        queue_s=sum(g.queue_s for g in generations),
        run_s=sum(g.run_s for g in generations),
        **latencies([g.queue_s + g.run_s for g in generations]),
        reused_calls=len(reused),
        reused_tokens=sum(g.prompt_tokens + g.output_tokens for g in reused),
        reused_cached_tokens=sum(g.cached_tokens for g in reused),
        reused_output_tokens=sum(g.output_tokens for g in reused),
    )


def of_block(block: ScoredBlock, *, query_id: str, stage: str, engine: str) -> LedgerRecord:
    """What one query asked of a scorer: a block is a call."""
    if block.reused:
        return LedgerRecord(query_id=query_id, stage=stage, engine=engine, reused_calls=1, reused_tokens=block.tokens)
    return LedgerRecord(
        query_id=query_id,
        stage=stage,
        engine=engine,
        calls=1,
        pairs=block.scores.size - block.reused_pairs,
        prompt_tokens=block.tokens,
        queue_s=block.queue_s,
        run_s=block.run_s,
        **latencies([block.queue_s + block.run_s]),
        reused_tokens=block.reused_tokens,
        cut_inputs=block.cut_inputs,
    )


class Latencies(TypedDict):
    """Latency of calls, as keyword arguments of a `LedgerRecord`."""

    latency_p50_s: float | None
    latency_p95_s: float | None
    latency_max_s: float | None


def latencies(seconds: Sequence[float]) -> Latencies:
    """p50, p95 and maximum; null without calls."""
    if not seconds:
        return {"latency_p50_s": None, "latency_p95_s": None, "latency_max_s": None}
    p50, p95 = np.percentile(seconds, [50, 95])
    return {"latency_p50_s": float(p50), "latency_p95_s": float(p95), "latency_max_s": float(max(seconds))}
