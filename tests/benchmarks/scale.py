"""Runs of growing size with a synthetic judge: `python -m tests.benchmarks.scale [--json] [--sizes 1000,5000,20000]`.

Everything but the model is real: requests and documents with texts of their own, Lucene, prompts, parsers,
journals, parts, ledger. Each query has 100 candidates and 10 sub-questions. Each size is a process and a Ray of its
own, with empty caches. Rows come as they are made, all of them as JSON at the end; with --json only that. Per size:

- queries_per_s: between the first finished shard and the last; by_quarter: the same for each quarter of the shards;
  run_s: the whole run, with start-up, Lucene's index and the run files;
- peak_rss_mb: of driver, workers and engines together, and of the largest process of each kind (driver_, worker_,
  engine_), without memory that they share;
- objects: files in the run folder, and per (shard, stage); run_mb: their size. Bound: 3 per (shard, stage), and 8;
- resume_plan_s: until a resume of the finished run knows that nothing is to do.

Disk: about 60 kB per query in the system's folder for temporary files, 1.2 GB for 20,000.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import ray

import lancer
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.plan import make_plan
from lancer.pipeline.resume import find_work
from lancer.pipeline.store import RunStore
from lancer.pipeline.summary import RunResult
from lancer.storage import Storage

SIZES = "1000,5000,20000"
DOCUMENTS = 5_000
WORDS = 2_000  # in the vocabulary: every query then finds 100 documents
SHARD_QUERIES = 16
OBJECTS_PER_SHARD_AND_STAGE = 3
OTHER_OBJECTS = 8  # run files, run.json, queries, shards, the session
KINDS = {"ray::EngineActor": "engine", "ray::": "worker"}  # by the title of a process


def write_inputs(folder: Path, queries: int, seed: int = 7) -> None:
    """Requests, corpus and config of one size."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(4, 9))) for _ in range(WORDS)]
    with (folder / "corpus.jsonl").open("w") as file:
        for i in range(DOCUMENTS):
            file.write(json.dumps({"doc_id": f"d{i}", "text": " ".join(draw.choices(words, k=80))}) + "\n")
    with (folder / "requests.jsonl").open("w") as file:
        for i in range(queries):
            text = f"report {i} on " + " ".join(draw.choices(words, k=12))
            file.write(json.dumps({"query_id": f"q{i}", "text": text}) + "\n")
    (folder / "config.yaml").write_text(
        f"""\
output: {folder}/run
requests: {folder}/requests.jsonl
corpus: {folder}/corpus.jsonl
retrieve: {{source: bm25, depth: 100}}
decompose: {{source: llm, n: 10}}
judge: {{engine: llm}}
select: {{selectors: ["greedy-coverage(tau=3)"]}}
shard_queries: {SHARD_QUERIES}
engines:
  bm25: {{kind: lucene}}
  llm: {{kind: synthetic}}
"""
    )


class PeakMemory(threading.Thread):
    """The largest resident size, without what is shared, of the driver, of a worker, of an engine, of all together."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks: Counter[str] = Counter()
        self._end = threading.Event()

    def run(self) -> None:
        """Looks twice a second."""
        me = psutil.Process()
        while not self._end.wait(0.5):
            now = {"driver": _private(me)}
            for process in me.children(recursive=True):
                try:
                    title = " ".join(process.cmdline()[:1])
                    kind = next((kind for start, kind in KINDS.items() if title.startswith(start)), None)
                    if kind is not None:
                        size = _private(process)
                        self.peaks[kind] = max(self.peaks[kind], size)
                        now[str(process.pid)] = size
                except psutil.Error:
                    continue
            self.peaks["driver"] = max(self.peaks["driver"], now["driver"])
            self.peaks["all"] = max(self.peaks["all"], sum(now.values()))

    def stop(self) -> None:
        """Ends the looking."""
        self._end.set()
        self.join()


def _private(process: psutil.Process) -> int:
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def measure(queries: int) -> dict[str, Any]:
    """One run of that many queries."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["LANCER_CACHE"] = f"{name}/cache"
        write_inputs(folder, queries)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
        config = lancer.load_config(str(folder / "config.yaml"))
        memory = PeakMemory()
        memory.start()
        result = lancer.run(config)
        memory.stop()
        ray.shutdown()
        files = [Path(at) / file for at, _, names in os.walk(folder / "run") for file in names]
        finished = _finished(folder / "run")
        start = time.monotonic()
        storage = Storage(config.storage)
        bits = json.loads((folder / "run" / "run.json").read_text())["shard_bits"]
        plan = make_plan(config, read_inputs(config, storage), storage, shard_bits=bits)
        store = RunStore(storage, config.output)
        work = find_work(plan, store)
        RunResult(config.output, queries).count_reused(plan, work, store)
        seconds = time.monotonic() - start
        if work.todo:
            raise RuntimeError("a finished run has work left")
        per_shard_and_stage = (len(files) - OTHER_OBJECTS) / len(plan.shards) / len(plan.stages)
        if per_shard_and_stage > OBJECTS_PER_SHARD_AND_STAGE:
            raise RuntimeError(f"{per_shard_and_stage:.2f} objects per shard and stage")
        return {
            "queries": queries,
            "queries_per_s": finishing_rate(folder / "run", queries),
            "by_quarter": [_rate(part, queries / len(finished)) for part in _quarters(finished)],
            "run_s": round(result.seconds, 1),
            "peak_rss_mb": round(memory.peaks["all"] / 1e6),
            **{f"{kind}_peak_rss_mb": round(memory.peaks[kind] / 1e6) for kind in ("driver", "worker", "engine")},
            "shards": len(plan.shards),
            "objects": len(files),
            "objects_per_shard_and_stage": round(per_shard_and_stage, 2),
            "run_mb": round(sum(file.stat().st_size for file in files) / 1e6),
            "resume_plan_s": round(seconds, 2),
        }


def finishing_rate(run: Path, queries: int) -> float:
    """Queries per second between the first finished shard of a run folder and the last."""
    finished = _finished(run)
    return _rate(finished, queries / len(finished))


def _finished(run: Path) -> list[float]:
    """When its shards were finished."""
    return sorted(file.stat().st_mtime for file in (run / "ranking.parquet").iterdir())


def _rate(moments: list[float], queries_per_shard: float) -> float:
    """Queries per second between the first and the last of the moments at which shards were finished."""
    return round((len(moments) - 1) * queries_per_shard / max(moments[-1] - moments[0], 1e-9), 1)


def _quarters(moments: list[float]) -> list[list[float]]:
    size = max(1, len(moments) // 4)
    return [moments[i * size : (i + 1) * size + 1] for i in range(4)]


def main() -> None:
    """Measures each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the JSON alone")
    parser.add_argument("--sizes", default=SIZES, help="numbers of queries")
    parser.add_argument("--only", type=int, help="measure one size here; for the processes that this starts")
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments.only)))
        return
    rows = {}
    for size in arguments.sizes.split(","):
        command = [sys.executable, "-m", "tests.benchmarks.scale", "--only", size]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        rows[size] = json.loads(output.splitlines()[-1])
        if not arguments.json:
            print("  ".join(f"{name} {value}" for name, value in rows[size].items()), flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
