"""Milliseconds per query of the greedy selectors: `python -m tests.benchmarks.selection [--json] [--queries N]`.

On the 50 DUC'04 matrices (100 candidates x 15 oracle sub-questions) of `../shared/data/lancer-duc04`, or on synthetic
ones of the same shape and shares where those are absent (`data` says which). Seconds are processor time of the one
thread that selects, the best of several rounds, so that a busy machine does not count. Three ways side by side:

    ms_*        compiled, as a process selects after its first queries (`compile_s`: once, not in the figures)
    numpy_ms_*  as it selects its first queries
    plain_ms_*  plain Python with early stop, over lists

`queries_per_s` is greedy-coverage over N queries of 100 x 10, from rows of numbers to the ranking with its explanation.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lancer.schema import Scale
from lancer.selection import CoverageMatrix, kernel, parse_selector
from lancer.selection.compiled import compiled_steps
from lancer.selection.matrix import FloatArray
from tests.selection import plain

RATINGS = "lancer-duc04/results/crux-mds-duc04-ratings/ratings.oracle.lsr.json"
ROUNDS = 15
TAU, ALPHA = 3.0, 0.5
SPECS = {
    "greedy_sum": "greedy-sum(tau=1)",
    "greedy_coverage": f"greedy-coverage(tau={TAU})",
    "greedy_alpha": f"greedy-alpha(alpha={ALPHA},tau={TAU})",
}
PLAIN: dict[str, Callable[[plain.Rows], list[int]]] = {
    "greedy_sum": lambda rows: plain.greedy_sum(rows, 1.0),
    "greedy_coverage": lambda rows: plain.greedy_coverage(rows, TAU),
    "greedy_alpha": lambda rows: plain.greedy_alpha(rows, TAU, ALPHA),
}


def measure(queries: int) -> dict[str, Any]:
    """All figures; the keys are those of the JSON output."""
    tables, data = matrices()
    ready = [CoverageMatrix(table, Scale.rating) for table in tables]
    rows = [np.nan_to_num(table).tolist() for table in tables]
    figures: dict[str, Any] = {"data": data, "matrices": len(tables), "numba": False}

    kernel._Progress.steps = -(10**9)
    for name, spec in SPECS.items():
        figures[f"numpy_ms_{name}"] = milliseconds(parse_selector(spec).select, ready)
    kernel._Progress.steps = kernel.COMPILE_AFTER_STEPS
    started = time.process_time()
    figures["numba"] = compiled_steps() is not None
    parse_selector(SPECS["greedy_alpha"]).select(ready[0])
    figures["compile_s"] = time.process_time() - started
    for name, spec in SPECS.items():
        selector = parse_selector(spec)
        assert [selector.select(m).order for m in ready] == [PLAIN[name](r) for r in rows]
        figures[f"ms_{name}"] = milliseconds(selector.select, ready)
        figures[f"plain_ms_{name}"] = milliseconds(PLAIN[name], rows)
        figures[f"ratio_{name}"] = figures[f"plain_ms_{name}"] / figures[f"ms_{name}"]
    coverage = parse_selector(SPECS["greedy_coverage"])
    narrow = [table[:, :10] for table in tables]
    figures["queries"] = queries
    figures["queries_per_s"] = per_second(
        lambda table: coverage.select(CoverageMatrix(table, Scale.rating)), narrow, queries
    )
    figures["plain_queries_per_s"] = per_second(
        PLAIN["greedy_coverage"], [np.nan_to_num(t).tolist() for t in narrow], min(queries, 2000)
    )
    figures["ratio_queries_per_s"] = figures["queries_per_s"] / figures["plain_queries_per_s"]
    return figures


def matrices() -> tuple[list[FloatArray], str]:
    """The rating matrices, NaN where the published file has -1 (unreadable), and where they come from."""
    path = Path(__file__).resolve().parents[2].parent / "shared" / "data" / RATINGS
    if path.is_file():
        published = json.loads(path.read_text())
        tables = [np.array(rows, dtype=np.float64) for rows in published.values()]
        return [np.where(table < 0, np.nan, table) for table in tables], "lancer-duc04, lsr, oracle ratings"
    chance = np.random.default_rng(0)
    shares = [0.837, 0.038, 0.075, 0.007, 0.032, 0.011]
    return [chance.choice(6, (100, 15), p=shares).astype(np.float64) for _ in range(50)], "synthetic"


def milliseconds(function: Callable[[Any], object], inputs: Sequence[Any]) -> float:
    """Per input: the best of the rounds, each over all inputs."""
    rounds = []
    for _ in range(ROUNDS):
        started = time.process_time()
        for each in inputs:
            function(each)
        rounds.append((time.process_time() - started) / len(inputs) * 1000)
    return min(rounds)


def per_second(function: Callable[[Any], object], inputs: Sequence[Any], count: int) -> float:
    """Calls per second over `count` calls."""
    started = time.process_time()
    for number in range(count):
        function(inputs[number % len(inputs)])
    return count / (time.process_time() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description="Milliseconds per query of the greedy selectors.")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--queries", type=int, default=100_000, help="queries of 100 x 10 for queries_per_s")
    arguments = parser.parse_args()
    figures = measure(arguments.queries)
    if arguments.json:
        print(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in figures.items()}))
        return
    print(f"{figures['matrices']} matrices: {figures['data']}; numba: {figures['numba']}")
    print(f"{'ms per query':<16}{'compiled':>10}{'numpy':>10}{'plain':>10}{'plain / compiled':>18}")
    for name in SPECS:
        columns = [figures[f"{way}ms_{name}"] for way in ("", "numpy_", "plain_")]
        print(f"{name:<16}{columns[0]:>10.4f}{columns[1]:>10.4f}{columns[2]:>10.4f}{figures[f'ratio_{name}']:>18.1f}")
    print(f"compile once: {figures['compile_s']:.2f} s")
    print(
        f"{figures['queries']} queries of 100 x 10: {figures['queries_per_s']:.0f} per second; "
        f"plain {figures['plain_queries_per_s']:.0f}"
    )


if __name__ == "__main__":
    main()
