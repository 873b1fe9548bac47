"""The same work per node on 1, 2 and 4 local Ray nodes: `python -m tests.benchmarks.weak_scaling [--json]`.

Each node brings one replica of a synthetic judge, two shards in flight and its share of queries, of 20 candidates and 5
sub-questions each. A call of the judge takes a second and no CPU, as on a GPU, so that the CPUs of this one machine,
which all nodes share, are not the limit: `cpu_share` says how much of them was in use. Efficiency is queries per second
per node beside those of one node.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.nodes import STORE_BYTES, private_cluster

NODES = (1, 2, 4)
QUERIES = 240  # per node
DEPTH, SUB_QUESTIONS, DOCUMENTS = 20, 5, 1_000


def write_inputs(folder: Path, nodes: int) -> None:
    """Requests, corpus, first stage and config for that many nodes."""
    draw = random.Random(nodes)
    with (folder / "corpus.jsonl").open("w") as corpus:
        for i in range(DOCUMENTS):
            text = " ".join(f"word{draw.randrange(5000)}" for _ in range(60))
            corpus.write(json.dumps({"doc_id": f"d{i}", "text": text}) + "\n")
    with (folder / "requests.jsonl").open("w") as requests, (folder / "first.run").open("w") as run:
        for q in range(QUERIES * nodes):
            requests.write(json.dumps({"query_id": f"q{q}", "text": f"what is known of subject {q}"}) + "\n")
            for rank, i in enumerate(draw.sample(range(DOCUMENTS), DEPTH), start=1):
                run.write(f"q{q} Q0 d{i} {rank} {DEPTH - rank} first\n")
    (folder / "config.yaml").write_text(
        f"""\
output: {folder}/run
requests: {folder}/requests.jsonl
corpus: {folder}/corpus.jsonl
retrieve: {{source: run, run: {folder}/first.run, depth: {DEPTH}}}
decompose: {{source: llm, n: {SUB_QUESTIONS}}}
judge: {{engine: llm}}
select: {{selectors: ["greedy-coverage(tau=3)"]}}
ray: {{workers: {2 * nodes}, worker_cpus: 0.5}}
engines:
  llm: {{kind: synthetic, questions: {SUB_QUESTIONS}, latency_s: 1.0, replicas: {nodes}, num_cpus: 1}}
"""
    )


@contextmanager
def cluster_of(nodes: int) -> Iterator[None]:
    """A Ray of that many nodes, two CPUs each by its books, to which this process is connected."""
    with private_cluster({}) as cluster:
        for _ in range(nodes):
            cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES, include_dashboard=False)
        import ray

        ray.init(cluster.address, log_to_driver=False, logging_level=logging.WARNING)
        try:
            yield
        finally:
            ray.shutdown()


def measure(nodes: int) -> dict[str, Any]:
    """One run on that many nodes. Ray is imported when the cluster's token is there, which it looks for then."""
    with tempfile.TemporaryDirectory() as name, cluster_of(nodes):
        folder = Path(name)
        os.environ["LANCER_CACHE"] = f"{name}/cache"
        write_inputs(folder, nodes)
        psutil.cpu_percent()
        import lancer
        from tests.benchmarks.scale import finishing_rate

        result = lancer.run(lancer.load_config(str(folder / "config.yaml")))
        return {
            "nodes": nodes,
            "queries": result.queries,
            "queries_per_s": finishing_rate(folder / "run", result.queries),
            "run_s": round(result.seconds, 1),
            "cpu_share": round(psutil.cpu_percent() / 100, 2),
        }


def main() -> None:
    """Measures each number of nodes in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="the JSON alone")
    parser.add_argument("--only", type=int, help="measure one number of nodes here; for the processes that this starts")
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments.only)))
        return
    rows: dict[int, dict[str, Any]] = {}
    for nodes in NODES:
        command = [sys.executable, "-m", "tests.benchmarks.weak_scaling", "--only", str(nodes)]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        row = rows[nodes] = json.loads(output.splitlines()[-1])
        row["efficiency"] = round(row["queries_per_s"] / nodes / rows[NODES[0]]["queries_per_s"], 2)
        if not arguments.json:
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
