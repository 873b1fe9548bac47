"""Every reranker and DES on `dl19-subquestions`, with the embedded models: `python -m tests.benchmarks.rerankers`.

22 queries, 100 candidates each (BM25), 10 given sub-questions; each row is a whole `lancer run`. Per row: nDCG@10 by
people's judgments, alpha_nDCG(rel=4)@10 and StRecall(rel=4)@10 by flan-t5's grades, all with bootstrap intervals over
queries; the seconds that engines were busy per query, and what these cost at $0.10 per hour (two cores), per 1,000
queries. Start-up and waiting are in neither.

The language models are asked about the first 20 candidates only (`--depth`): SmolLM2 on a CPU shows what they cost and
that they work, not what they can do. The cross-encoder is MiniLM with the head of `cross_encoder_training`, which has
learned arguments and key points, not relevance. Thresholds are those of `configs/oracle.yaml` and of DES, not tuned.

Runs stay in `--folder` and go on where they were; `--only "bm25;mmr"` takes some of the rows. `--json` gives row ->
{measure: [mean, low, high], "seconds", "usd_per_1000", "queries", "llm_depth"}.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray

import lancer
from lancer.engines.cache import cache_dir
from lancer.evaluation.measures import evaluate
from lancer.evaluation.names import parse_measures
from lancer.evaluation.significance import confidence_interval
from lancer.formats.qrels import read_qrels
from lancer.formats.runs import read_run
from lancer.pipeline.cost import read_cost
from tests.benchmarks.cross_encoder_training import SHARED, trained_cross_encoder

USD_PER_HOUR: Final = 0.10
MEASURES: Final = {
    "qrels.nist.txt": "nDCG@10",
    "grades.subquestions.txt.gz": "alpha_nDCG(rel=4)@10 StRecall(rel=4)@10",
}
BASE: Final = """\
output: {folder}/{name}
requests: {data}/queries.tsv
corpus: {data}/docs.jsonl.gz
retrieve: {{source: run, run: {data}/candidates.bm25-judged-pool.run}}
shard_queries: 8
"""
LLM: Final = "llm: {kind: vllm, model: 'embedded:smollm2', max_model_len: 4096}"
MINILM: Final = "scorer: {kind: bi-encoder, model: 'embedded:minilm'}"
DES: Final = "greedy-coverage(tau={tau},strict=true,ties=second,rest=second)"


@dataclass(frozen=True)
class Settings:
    """What a row may depend on: how many candidates a language model is asked about, where the sub-questions are."""

    depth: int
    sub_questions: Path

    @property
    def cross(self) -> str:
        """The engine of the cross-encoder; trains it where the cache lacks it."""
        return f"cross: {{kind: cross-encoder, model: {trained_cross_encoder()}}}"

    def model(self, step: str) -> str:
        """A config that asks the language model."""
        return f"rerank: {{{step}, engine: llm, depth: {self.depth}, max_words: 100}}\nengines:\n  {LLM}\n"

    def coverage(self, *, rerank: str, estimate: str, selector: str, engines: str) -> str:
        """A config with a coverage matrix."""
        return (
            f"rerank: {rerank}\ndecompose: {{source: given, path: {self.sub_questions}}}\n"
            f'estimate: {{engine: {estimate}}}\nselect: {{selectors: ["{selector}"]}}\nengines:\n  {engines}\n'
        )


BI_ENCODER: Final = "{method: bi-encoder, engine: scorer}"
ROWS: Final[dict[str, Callable[[Settings], str]]] = {
    "bm25": lambda s: "",
    "bi-encoder": lambda s: f"rerank: {BI_ENCODER}\nengines:\n  {MINILM}\n",
    "mmr": lambda s: f"rerank: {{method: mmr, engine: scorer, lambda: 0.5}}\nengines:\n  {MINILM}\n",
    "cross-encoder": lambda s: f"rerank: {{method: cross-encoder, engine: cross}}\nengines:\n  {s.cross}\n",
    "pointwise": lambda s: s.model("method: pointwise"),
    "graded": lambda s: s.model("method: graded"),
    "listwise": lambda s: s.model("method: listwise, window: 10, step: 5"),
    "setwise": lambda s: s.model("method: setwise"),
    "sum, MiniLM": lambda s: s.coverage(rerank="null", estimate="scorer", selector="sum(tau=0)", engines=MINILM),
    "DES, MiniLM": lambda s: s.coverage(
        rerank=BI_ENCODER, estimate="scorer", selector=DES.format(tau=0.5), engines=MINILM
    ),
    "DES, cross-encoder": lambda s: s.coverage(
        rerank=BI_ENCODER, estimate="cross", selector=DES.format(tau=0.3), engines=f"{MINILM}\n  {s.cross}"
    ),
}


def run_row(name: str, settings: Settings, data: Path, folder: Path) -> dict[str, Any]:
    """One run, or what is missing of it, and its figures."""
    slug = name.replace(", ", "-").lower()
    path = folder / f"{slug}.yaml"
    path.write_text(BASE.format(folder=folder, name=slug, data=data) + ROWS[name](settings))
    lancer.run(lancer.load_config(str(path)))
    rankings = read_run(folder / slug / "run.trec").rankings
    figures: dict[str, Any] = {}
    for file, names in MEASURES.items():
        qrels = [q for q in read_qrels(data / file) if q.query_id in rankings]
        evaluation = evaluate(rankings, qrels, parse_measures(names))
        for measure, values in evaluation.per_query.items():
            figures[measure] = [evaluation.mean[measure], *confidence_interval(values)]
    cost = read_cost(str(folder / slug))
    figures["seconds"] = sum(engine.use.busy_s for engine in cost.engines) / cost.queries
    figures["usd_per_1000"] = 1000 * figures["seconds"] * USD_PER_HOUR / 3600
    figures["queries"] = cost.queries
    figures["llm_depth"] = settings.depth if LLM in path.read_text() else None
    return figures


def line(name: str, figures: dict[str, Any]) -> str:
    """A row for people."""
    cells = [
        f"{mean:.3f} ({low:.3f}-{high:.3f})" for mean, low, high in (v for v in figures.values() if isinstance(v, list))
    ]
    return (
        f"{name:20}{''.join(f'{cell:>22}' for cell in cells)}{figures['seconds']:>9.3f}{figures['usd_per_1000']:>9.3f}"
    )


def main() -> None:
    """Prints a row per system."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", help="names of rows, separated by semicolons")
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--folder", type=Path, default=cache_dir() / "benchmarks" / "rerankers")
    options = parser.parse_args()
    if not SHARED.is_dir():
        sys.exit(f"needs the real data in {SHARED}")
    data = SHARED / "dl19-subquestions"
    names = list(ROWS) if options.only is None else options.only.split(";")
    options.folder.mkdir(parents=True, exist_ok=True)
    settings = Settings(options.depth, data / "subquestions.tsv")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        rows[name] = run_row(name, settings, data, options.folder)
        if not options.json:
            if len(rows) == 1:
                heads = [m for names in MEASURES.values() for m in names.split()]
                print(f"{'':20}{''.join(f'{head:>22}' for head in heads)}{'s/query':>9}{'$/1000':>9}")
            print(line(name, rows[name]), flush=True)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
