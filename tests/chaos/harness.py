"""Kills a job at random and between writing and committing, resumes it, and compares what it leaves byte for byte.

    python -m tests.chaos.harness --storage disk s3 --kills 25 --seed 1 [--json]

A round is one output folder, from nothing to finished; rounds follow one another until the kills are used up. A run
whose driver was killed, or which ended by itself, is started again with the same command. Compared with an undisturbed
run: `ranking.parquet`, `coverage.parquet`, `run.trec`. Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from lancer.pipeline.store import TABLES
from lancer.storage import Storage, StorageConfig
from tests.chaos.job import CALLS, DEPTH, SELECTORS, write_job
from tests.chaos.nodes import Nodes, two_nodes
from tests.chaos.processes import engine_actors, kill, workers
from tests.chaos.schedule import Kill, draw
from tests.s3_servers import running_server

PATIENCE_S: Final = 120.0  # for a process to be there, an injected kill to strike, a killed one to be gone
QUERIES: Final = 36
ENDINGS: Final = 5  # a run that ends so often by itself without being killed in between has failed
COMPARED: Final = ("ranking.parquet/", "coverage.parquet/", "run.trec", "run.sum(tau=1).trec", "first_stage.trec")
ROOT: Final = Path(__file__).resolve().parents[2]


class Broken(Exception):
    """What must not happen."""


@dataclass
class Report:
    """What happened on one kind of storage."""

    storage: str
    kills: list[str] = field(default_factory=list)
    injected: int = 0
    rounds: int = 0
    starts: int = 0
    ended_by_itself: list[str] = field(default_factory=list)  # last lines of runs that nobody killed
    calls: int = 0
    calls_repeated: int = 0
    seconds: float = 0.0
    differences: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """For a person."""
        by_victim = Counter(text.split()[0] for text in self.kills)
        victims = ", ".join(f"{count} {victim}s" for victim, count in sorted(by_victim.items()))
        kills = f"{len(self.kills)} kills ({victims}; {self.injected} between write and commit)"
        yield f"{self.storage}: {kills} in {self.seconds:.0f} s"
        ended = len(self.ended_by_itself)
        yield f"{self.rounds} runs finished, in {self.starts} starts, of which {ended} ended by themselves"
        share = self.calls_repeated / self.calls if self.calls else 0.0
        yield f"{self.calls:,} engine calls, {self.calls_repeated:,} of them repeated after a kill ({share:.1%})"
        yield from self.ended_by_itself
        yield from self.differences
        yield "all equal to the undisturbed run" if not self.differences else f"{len(self.differences)} DIFFERENCES"


@dataclass
class Chaos:
    """A job, the cluster it runs on, and where its runs go; `undisturbed`: what such a run leaves."""

    folder: Path
    queries: int
    nodes: Nodes
    base: str  # of outputs
    endpoint: str | None
    report: Report
    say: Callable[[str], None]
    undisturbed: dict[str, bytes]
    driver: subprocess.Popen[bytes] | None = None
    output: str = ""
    endings: int = 0

    def __post_init__(self) -> None:
        self.storage = Storage(StorageConfig(endpoint_override=self.endpoint))

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the run of this round, or goes on with it."""
        self.output = self.output or f"{self.base}/round-{self.report.rounds + 1}"
        command = [sys.executable, "-m", "lancer.cli", "run", str(self.folder / "config.yaml")]
        command += [f"output={self.output}", f"storage.endpoint_override={self.endpoint or 'null'}"]
        environment = os.environ | {"RAY_ADDRESS": self.nodes.address}
        with (self.folder / "driver.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self.report.starts += 1
        return process

    def running(self) -> subprocess.Popen[bytes]:
        """The driver; started again when it has ended, on a new round when that is finished."""
        if self.driver is not None and self.driver.poll() is None:
            return self.driver
        if self.driver is not None:
            self._ended(self.driver.returncode)
        self.driver = self.start()
        return self.driver

    def _ended(self, code: int) -> None:
        if code == 0:
            self._compare()
            self.report.rounds += 1
            self.output, self.endings = "", 0
        elif code != -signal.SIGKILL:
            self.endings += 1
            lines = (self.folder / "driver.log").read_text(errors="replace").strip().splitlines() or ["(silent)"]
            self.report.ended_by_itself.append(f"exit {code}: {lines[-1]}")
            self.say(f"  ended by itself, exit {code}: {lines[-1]}")
            if self.endings >= ENDINGS or lines[-1].startswith(("Traceback", " ")):
                raise Broken("\n".join(lines[-40:]))

    def finish(self) -> None:
        """Lets the run of this round come to its end; there is a finished round after that."""
        before = self.report.rounds
        while self.report.rounds == before:
            self.running().wait(timeout=5 * PATIENCE_S)
            driver, self.driver = self.driver, None
            assert driver is not None
            self._ended(driver.returncode)

    def strike(self, order: Kill) -> None:
        """Carries out one kill."""
        if order.injected:
            self._inject(order)
        else:
            self._kill_process(order)
        if order.victim == "driver" and self.driver is not None:
            self.driver.wait(timeout=PATIENCE_S)
        self.endings = 0
        self.report.kills.append(str(order))
        self.report.injected += order.injected
        self.say(f"{len(self.report.kills)}: {order}")

    def _inject(self, order: Kill) -> None:
        armed = self.folder / "armed.json"
        for hit in self.folder.glob("hit-*"):
            hit.unlink()
        temporary = self.folder / "arming"
        temporary.write_text(json.dumps({"what": order.what, "when": order.when}))
        temporary.rename(armed)
        deadline = time.monotonic() + PATIENCE_S
        while not list(self.folder.glob("hit-*")):
            self.running()
            if time.monotonic() > deadline:
                raise Broken(f"nobody committed {order.what} within {PATIENCE_S:.0f} s")
            time.sleep(0.05)

    def _kill_process(self, order: Kill) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            driver = self.running()
            if any(workers(raylet) for raylet in self.nodes.raylets):
                time.sleep(order.delay_s)
                if order.victim == "node":
                    return self.nodes.lose_one()
                find = engine_actors if order.victim == "actor" else workers
                found = [pid for raylet in self.nodes.raylets for pid in find(raylet)]
                if driver.poll() is None and any(kill(pid) for pid in (found, [driver.pid])[order.victim == "driver"]):
                    return None
            time.sleep(0.05)
        raise Broken(f"no {order.victim} was there to be killed within {PATIENCE_S:.0f} s")

    def files(self) -> dict[str, bytes]:
        """What is compared, by name below the output."""
        found = {}
        for entry in self.storage.list(self.output):
            name = entry.uri[len(self.output) + 1 :]
            if name.startswith(COMPARED):
                found[name] = self.storage.read(entry.uri)
        return found

    def _compare(self) -> None:
        files = self.files()
        _check_complete(files, self.queries)
        self.undisturbed = self.undisturbed or files
        for name in sorted(files.keys() | self.undisturbed.keys()):
            if files.get(name) != self.undisturbed.get(name):
                self.report.differences.append(f"{self.output}/{name} differs")
        for table in TABLES:
            entries = self.storage.list(f"{self.output}/{table}")
            shards = Counter(entry.uri.rpartition("/")[2].split("-")[1] for entry in entries)
            if len(shards) != len(entries):
                self.report.differences.append(f"{self.output}/{table} has two parts of a shard")
            if table == "failures.parquet":
                blamed = [row for entry in entries for row in _rows(self.storage.read(entry.uri))]
                self.report.differences += [f"{self.output}: {row['query_id']}: {row['reason']}" for row in blamed]

    def count_calls(self) -> None:
        """How often engines were asked what had been asked before in the same round."""
        files = list(self.folder.glob("calls-*"))
        self.report.calls = sum(len(file.read_text().splitlines()) for file in files)
        self.report.calls_repeated = self.report.calls - CALLS * self.queries * self.report.rounds
        for file in files:
            file.unlink()

    def run(self, kills: list[Kill]) -> Report:
        """Carries them all out, and lets the last round come to its end."""
        begin = time.monotonic()
        try:
            for order in kills:
                self.strike(order)
            self.finish()
        finally:
            if self.driver is not None:
                self.driver.kill()
                self.driver.wait()
        self.report.seconds = time.monotonic() - begin
        self.count_calls()
        return self.report


def _rows(content: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(content)).to_pylist()
    return rows


def _check_complete(files: dict[str, bytes], queries: int) -> None:
    """Broken: a query is missing or there twice, or a document of it is."""
    rows = [row for name, content in files.items() if name.startswith("ranking.parquet/") for row in _rows(content)]
    keys = Counter((row["selector"], row["query_id"], row["doc_id"]) for row in rows)
    per_query = Counter((selector, query_id) for selector, query_id, _ in keys)
    wanted = len(SELECTORS) * queries
    if len(per_query) != wanted or max(keys.values()) > 1 or set(per_query.values()) != {DEPTH}:
        raise Broken(f"{len(per_query)} of {wanted} rankings, a document {max(keys.values())} times")
    lines = len(files["run.trec"].decode().splitlines())
    if lines != queries * DEPTH:
        raise Broken(f"run.trec has {lines} lines, not {queries * DEPTH}")


def run_chaos(kills: dict[str, int], seed: int, *, queries: int = QUERIES, say: Callable[[str], None]) -> list[Report]:
    """So many kills of the job on "disk" and on "s3". Broken: a run does not come to its end, or is not complete."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos")))
        places: dict[str, tuple[str, str | None]] = {"disk": (str(folder / "runs"), None)}
        if "s3" in kills:
            server = stack.enter_context(running_server("moto", folder, _credentials()))
            places["s3"] = (f"s3://{server.create_bucket()}", server.endpoint)
        write_job(folder, queries)
        environment = {
            "CHAOS": str(folder),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent / "inject"), str(ROOT)]),
            "LANCER_CACHE": str(folder / "cache"),
        }
        nodes = stack.enter_context(two_nodes(folder, environment))
        first = Chaos(folder, queries, nodes, str(folder / "first"), None, Report("undisturbed"), say, {})
        say(f"undisturbed: {first.run([]).seconds:.0f} s")
        return [
            Chaos(folder, queries, nodes, *places[storage], Report(storage), say, first.undisturbed).run(
                draw(n, seed + i)
            )
            for i, (storage, n) in enumerate(kills.items())
        ]


def _credentials() -> dict[str, str]:
    credentials = {
        "AWS_ACCESS_KEY_ID": "chaos",
        "AWS_SECRET_ACCESS_KEY": uuid.uuid4().hex,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    os.environ.update(credentials)
    return credentials


def main() -> int:
    """Prints what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--storage", nargs="+", choices=("disk", "s3"), default=["disk"])
    parser.add_argument("--kills", nargs="+", type=int, default=[25], help="on each kind of storage, or one for all")
    parser.add_argument("--queries", type=int, default=QUERIES, help="of the job")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    counts = arguments.kills * len(arguments.storage) if len(arguments.kills) == 1 else arguments.kills
    kills = dict(zip(arguments.storage, counts, strict=True))
    _say(f"chaos: {', '.join(f'{n} kills on {storage}' for storage, n in kills.items())}, seed {arguments.seed}")
    reports = run_chaos(kills, arguments.seed, queries=arguments.queries, say=_say)
    lines = [line for report in reports for line in report.lines()]
    text = json.dumps([vars(report) for report in reports], indent=1) if arguments.json else "\n".join(lines)
    sys.stdout.write(text + "\n")
    return 1 if any(report.differences for report in reports) else 0


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
