"""Runs of growing size with a synthetic judge: `python -m tests.benchmarks.scale [--json] [--sizes 1000,5000,20000]`.

Everything but the model is real: requests and documents with texts of their own, Lucene, prompts, parsers,
journals, parts, ledger. Each query has 100 candidates and 10 sub-questions; nothing is cached between sizes. Per
size: queries per second of the whole run, the peak memory of the driver and of the largest worker, the number of
files in the run folder, and the seconds until a resume of the finished run knows that nothing is to do.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import ray

import lancer
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.plan import make_plan
from lancer.pipeline.resume import find_work
from lancer.pipeline.store import RunStore
from lancer.storage import Storage

SIZES = "1000,5000,20000"
DOCUMENTS = 5_000
WORDS = 2_000  # in the vocabulary: every query then finds 100 documents


def write_inputs(folder: Path, queries: int, seed: int = 7) -> None:
    """Requests, corpus and config of one size."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(4, 9))) for _ in range(WORDS)]
    with (folder / "corpus.jsonl").open("w") as file:
        for i in range(DOCUMENTS):
            file.write(json.dumps({"doc_id": f"d{i}", "text": " ".join(draw.choices(words, k=80))}) + "\n")
    with (folder / "requests.jsonl").open("w") as file:
        for i in range(queries):
            file.write(
                json.dumps({"query_id": f"q{i}", "text": f"report {i} on " + " ".join(draw.choices(words, k=12))})
                + "\n"
            )
    (folder / "config.yaml").write_text(
        f"""\
output: {folder}/run
requests: {folder}/requests.jsonl
corpus: {folder}/corpus.jsonl
retrieve: {{source: bm25, depth: 100}}
decompose: {{source: llm, n: 10}}
judge: {{engine: llm}}
select: {{selectors: ["greedy-coverage(tau=3)"]}}
shard_queries: 8
engines:
  bm25: {{kind: lucene}}
  llm: {{kind: synthetic}}
"""
    )


class PeakMemory(threading.Thread):
    """The largest resident size of this process, and of any of its descendants' Python workers."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.driver, self.worker = 0, 0
        self._end = threading.Event()

    def run(self) -> None:
        """Looks twice a second."""
        me = psutil.Process()
        while not self._end.wait(0.5):
            self.driver = max(self.driver, me.memory_info().rss)
            for process in me.children(recursive=True):
                try:
                    if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::"):
                        self.worker = max(self.worker, process.memory_info().rss - process.memory_info().shared)
                except psutil.Error:
                    continue

    def stop(self) -> None:
        """Ends the looking."""
        self._end.set()
        self.join()


def measure(queries: int) -> dict[str, Any]:
    """One run of that many queries."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["LANCER_CACHE"] = f"{name}/cache"
        write_inputs(folder, queries)
        config = lancer.load_config(str(folder / "config.yaml"))
        memory = PeakMemory()
        memory.start()
        result = lancer.run(config)
        memory.stop()
        files = sum(len(names) for _, _, names in os.walk(folder / "run"))
        start = time.monotonic()
        storage = Storage(config.storage)
        bits = json.loads((folder / "run" / "run.json").read_text())["shard_bits"]
        plan = make_plan(config, read_inputs(config, storage), storage, shard_bits=bits)
        work = find_work(plan, RunStore(storage, config.output))
        seconds = time.monotonic() - start
        if work.todo:
            raise RuntimeError("a finished run has work left")
        return {
            "queries": queries,
            "queries_per_s": round(queries / result.seconds, 2),
            "pairs_per_s": round(1000 * queries / result.seconds),
            "driver_peak_rss_mb": round(memory.driver / 1e6),
            "peak_rss_mb": round(memory.worker / 1e6),
            "shards": len(plan.shards),
            "objects": files,
            "resume_plan_s": round(seconds, 2),
        }


def main() -> None:
    """Prints a row per size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sizes", default=SIZES)
    arguments = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    rows = []
    for size in arguments.sizes.split(","):
        rows.append(measure(int(size)))
        if not arguments.json:
            print("  ".join(f"{name} {value:,}" for name, value in rows[-1].items()), flush=True)
    if arguments.json:
        print(json.dumps({str(row["queries"]): row for row in rows}))


if __name__ == "__main__":
    main()
