"""How much of a run's wall time is its slowest part: `python -m tests.benchmarks.pipeline [--json]`.

One run on the bundled sample (BM25, given sub-questions, MiniLM, 16 queries x 50 candidates): the wall time of the run,
of its engines' start-up, and the busy time of the busiest engine by its own clock. `ratio` = wall / (start-up + busy):
1 = nothing but the slowest part.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import lancer

ROOT = Path(__file__).resolve().parents[2]


def measure(folder: str) -> dict[str, float | str]:
    """One run into `folder`."""
    sample = ROOT / "configs" / "sample"
    result = lancer.run(
        lancer.load_config(
            str(ROOT / "configs" / "demo.yaml"),
            [
                f"output={folder}/run",
                f"requests={sample}/requests.jsonl",
                f"corpus={sample}/corpus.jsonl",
                "qrels=null",
                "decompose.source=given",
                f"decompose.path={sample}/sub_questions.jsonl",
            ],
        )
    )
    clocks = {name: of[0] for name, of in result.engines.items()}
    busiest = max(clocks, key=lambda name: clocks[name].busy_s)
    startup = max(clock.startup_s for clock in clocks.values())
    return {
        "wall_s": round(result.seconds, 2),
        "startup_s": round(startup, 2),
        "busiest": busiest,
        "busy_s": round(clocks[busiest].busy_s, 2),
        "ratio": round(result.seconds / (startup + clocks[busiest].busy_s), 2),
    }


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(folder)
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:10} {value}")


if __name__ == "__main__":
    main()
