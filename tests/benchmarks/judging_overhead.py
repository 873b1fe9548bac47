"""What the pipeline costs beside the engine: stage judge, journal and Ray pool against `vllm.LLM.generate`.

2,000 pairs in two rounds. In each, two batches of queries go through stage, journal and pool at once, as shards in
flight do, and `LLM.generate` is called once with the same token ids and parameters in the same order. Which of the two
goes first changes in the second round. Start-up is not counted, and for `LLM.generate` neither is making the token ids.

    overhead        seconds of the pipeline / seconds of LLM.generate - 1; `overhead_cpu` in processor seconds, of the
                    engine's actor, Ray and the stages together
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa

from lancer import schema
from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.embedded import resolve_model
from lancer.engines.protocols import Generation, Message, Sampling, TextEngine
from lancer.engines.sources import DocumentSource
from lancer.engines.synthetic import SyntheticConfig, SyntheticEngine
from lancer.engines.tokenizers import model_tokens
from lancer.engines.vllm_calls import sampling_params
from lancer.engines.vllm_engine import CPU_BLOCK_SIZE, VllmConfig, dtype_on_cpu
from lancer.pipeline.distributed.engine_pool import EnginePool, PooledText
from lancer.pipeline.journal import Journal, JournalledText
from lancer.stages.base import call
from lancer.stages.judge import Judge, JudgeConfig
from lancer.storage import Storage
from tests.benchmarks.judging_data import Judged
from tests.benchmarks.processes import Served, processor_seconds
from tests.scripted import Engines

SHARDS = 2  # in flight, as `ray.workers` has it
SHARD_QUERIES = 5

_STAGE: Final = Judge(JudgeConfig(engine="llm"))


class _Recorded:
    """Takes down what is asked of an engine, and what it answers."""

    def __init__(self, engine: TextEngine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self.asked: list[tuple[Sequence[Message], Sampling]] = []
        self.answers: list[Generation] = []

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        """As the engine does."""
        answers = self._engine.generate(prompts, sampling, priority=priority)
        with self._lock:
            self.asked += [(prompt, sampling) for prompt in prompts]
            self.answers += answers
        return answers


def measure_overhead(judged: Sequence[Judged], config: VllmConfig) -> dict[str, Any]:
    """The keys are those of the JSON output. The queries that are left over warm up."""
    import ray

    logging.disable(logging.WARNING)
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    size = SHARDS * SHARD_QUERIES
    rounds = [judged[at : at + size] for at in range(0, len(judged) - size + 1, size)]
    pool = EnginePool("llm", config, DocumentSource("corpus", "", ""), Storage(), restarts=0)
    try:
        pool.wait_until_started()
        with Served(serve_direct, config) as direct, tempfile.TemporaryDirectory() as folder:
            engine = PooledText(pool)
            warm = judged[len(rounds) * size :]
            _ours(warm, engine, folder, direct.pid)
            direct.call(*asked_of(warm, config))
            seconds, processor_s = {"ours": 0.0, "direct": 0.0}, {"ours": 0.0, "direct": 0.0}
            answers: list[Generation] = []
            for number, part in enumerate(rounds):
                asked = asked_of(part, config)
                for way in ("ours", "direct") if number % 2 == 0 else ("direct", "ours"):
                    if way == "ours":
                        got, wall, processor = _ours(part, engine, folder, direct.pid)
                        answers += got
                    else:
                        _, wall, processor = direct.call(*asked)
                    seconds[way], processor_s[way] = seconds[way] + wall, processor_s[way] + processor
    finally:
        pool.kill()
        ray.shutdown()
    return {
        "overhead_pairs": len(answers),
        "overhead": seconds["ours"] / seconds["direct"] - 1,
        "overhead_cpu": processor_s["ours"] / processor_s["direct"] - 1,
        "pairs_per_s_ours": len(answers) / seconds["ours"],
        "pairs_per_s_direct": len(answers) / seconds["direct"],
        "overhead_cached_share": sum(g.cached_tokens for g in answers) / sum(g.prompt_tokens for g in answers),
        "overhead_errors": sorted({g.error for g in answers} - {""}),
    }


def asked_of(judged: Sequence[Judged], config: VllmConfig) -> tuple[list[list[int]], list[Sampling]]:
    """What the stage asks, in order, as token ids and sampling: of an engine that answers at once."""
    tokens = model_tokens(config)
    assert tokens is not None
    recorded = _Recorded(SyntheticEngine(SyntheticConfig()))
    for batch in _batches(judged):
        call(_STAGE, batch, _engines(recorded, judged))
    ids = [tokens.chat.encode(prompt, score=sampling.score).ids for prompt, sampling in recorded.asked]
    return ids, [sampling for _, sampling in recorded.asked]


def _ours(
    judged: Sequence[Judged], engine: TextEngine, folder: str, other: int
) -> tuple[list[Generation], float, float]:
    """Through stage and journal, the batches at once; what was answered, seconds, processor seconds.

    other: a process whose are not counted.
    """
    recorded = _Recorded(engine)

    def run(batch: pa.Table) -> None:
        journal = Journal(Storage(), folder, uuid.uuid4().hex)
        call(_STAGE, batch, _engines(JournalledText(recorded, journal), judged))
        journal.close()

    batches = _batches(judged)
    began, processor = time.perf_counter(), processor_seconds(os.getpid(), without=other)
    with ThreadPoolExecutor(SHARDS) as shards:
        list(shards.map(run, batches))
    seconds = time.perf_counter() - began
    return recorded.answers, seconds, processor_seconds(os.getpid(), without=other) - processor


def _engines(engine: TextEngine, judged: Sequence[Judged]) -> Engines:
    """The engine, and documents that are their own ids."""
    return Engines(text=engine, texts={document: document for one in judged for document in one.documents})


def _batches(judged: Sequence[Judged]) -> list[pa.Table]:
    fields = pa.schema([schema.QUERY_ID, *_STAGE.reads])
    rows = [
        {
            "query_id": one.query_id,
            "text": one.request,
            "candidates": [{"doc_id": d, "score": float(-i), "has_text": True} for i, d in enumerate(one.documents)],
            "sub_questions": [{"id": str(j), "text": q} for j, q in enumerate(one.sub_questions, 1)],
        }
        for one in judged
    ]
    parts = [rows[at : at + SHARD_QUERIES] for at in range(0, len(rows), SHARD_QUERIES)]
    return [pa.Table.from_pylist(part, schema=fields) for part in parts]


def serve_direct(config: VllmConfig) -> Any:
    """In a process of its own: vLLM alone, with the engine's settings."""
    logging.disable(logging.WARNING)
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    from vllm import LLM
    from vllm.inputs import TokensPrompt

    model = resolve_model(config.model, config.revision).path_or_id
    llm = LLM(
        model=model,
        dtype=dtype_on_cpu(config),
        max_model_len=config.max_model_len,
        block_size=config.block_size or CPU_BLOCK_SIZE,
        kv_cache_memory_bytes=int(config.kv_cache_gib * 2**30),
        max_num_seqs=config.max_num_seqs,
        enforce_eager=True,
        distributed_executor_backend="uni",
        structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": True},
    )
    token_of = ChatTokens(llm.get_tokenizer(), config.chat_template_kwargs).token_of

    def generate(prompts: list[list[int]], samplings: list[Sampling]) -> int:
        known = {sampling: sampling_params(sampling, token_of) for sampling in set(samplings)}
        inputs = [TokensPrompt(prompt_token_ids=ids) for ids in prompts]
        outputs = llm.generate(inputs, [known[s] for s in samplings], use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return generate
