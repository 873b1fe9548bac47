"""The job that is killed: BM25 over a small Lucene index, decomposed by replay, judged by a synthetic LLM.

Small shards, so that there are many commits; the judge takes its time, so that there is something to interrupt. Every
answer depends on its prompt only.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Final

import pyarrow as pa

from lancer import schema
from lancer.engines.replay import RecordingEngine
from lancer.engines.synthetic import SyntheticConfig, SyntheticEngine
from lancer.stages.base import call
from lancer.stages.decompose import Decompose, DecomposeConfig
from lancer.storage import Storage
from tests.scripted import Engines

DOCUMENTS: Final = 60
DEPTH: Final = 6
N: Final = 2
CALLS: Final = 1 + DEPTH * N  # of a query
SELECTORS: Final = ("greedy-coverage(tau=3)", "sum(tau=1)")
_SYLLABLES: Final = ("ba", "do", "fen", "gil", "ka", "lo", "mir", "nu", "pel", "ro", "su", "ta", "vel", "wi", "zon")
WORDS: Final = [one + other for one in _SYLLABLES[:6] for other in _SYLLABLES[6:11]]


def write_job(folder: Path, queries: int) -> None:
    """Requests, corpus, recorded sub-questions and config.yaml in `folder`."""
    draw = random.Random(4)
    requests = [{"query_id": f"q{i:02d}", "text": " ".join(draw.sample(WORDS, 5))} for i in range(queries)]
    documents = [{"doc_id": f"d{i:02d}", "text": " ".join(draw.choices(WORDS, k=30))} for i in range(DOCUMENTS)]
    for name, rows in (("requests.jsonl", requests), ("corpus.jsonl", documents)):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    _record(requests, folder / "sub_questions.recorded.jsonl")
    (folder / "config.yaml").write_text(
        f"""\
output: {folder}/run
requests: {folder}/requests.jsonl
corpus: {folder}/corpus.jsonl
retrieve: {{source: bm25, engine: index, depth: {DEPTH}}}
decompose: {{engine: recorded, n: {N}}}
judge: {{engine: llm}}
select: {{selectors: {json.dumps(SELECTORS)}}}
shard_queries: 1
ray: {{workers: 2, worker_cpus: 0.1}}
engines:
  index: {{kind: lucene, heap: 128m, threads: 1, num_cpus: 0.2}}
  recorded: {{kind: replay, path: {folder}/sub_questions.recorded.jsonl, strict: true, num_cpus: 0.2}}
  llm: {{kind: synthetic, latency_s: 0.3, num_cpus: 0.2}}
"""
    )


def _record(requests: list[dict[str, str]], path: Path) -> None:
    engine = RecordingEngine(SyntheticEngine(SyntheticConfig(questions=N)), Storage(), str(path))
    fields = ("text", "title", "background", "problem_statement")
    stage = Decompose(DecomposeConfig(engine="recorded", n=N))
    rows = [dict.fromkeys(fields) | request for request in requests]
    batch = pa.Table.from_pylist(rows, schema=pa.schema([schema.QUERY_ID, *stage.reads]))
    call(stage, batch, Engines(text=engine))
    engine.close()
