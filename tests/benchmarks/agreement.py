"""Do ratings agree with given grades? `python -m tests.benchmarks.agreement [--json] [--queries N] [--documents N] …`.

Every layout and readout that SmolLM2 (135 million parameters, on the CPU) can give, by the stage itself, on the same
cells of `../shared/data/dl19-subquestions` (grades 0-5 by flan-t5-large; `human` also wants a NIST grade of 2 or more):
some queries, for each the same documents, drawn by their hash from its graded candidates, and its first sub-questions.
Half of the queries, by hash, are the development set: the isotonic map and the threshold with the best F1 are fitted
there. All figures are of the other half.

    auc        of the cells with grade >= 4 against the rest, before calibration; 95 % bootstrap interval over queries
    brier      of the calibrated probability of grade >= 4; `constant`: of the share in the development set for all
    f1         of the cells at the threshold
    unread     share of cells without a value, which count 0 in all figures
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.protocols import Documents, PairScorer, SearchEngine
from lancer.engines.tokenizers import context_of, model_tokens
from lancer.engines.vllm_engine import VllmConfig, VllmEngine
from lancer.evaluation.calibration import apply_knots, auc, best_threshold, f1, figures, fit_isotonic
from lancer.formats.corpora import read_corpus
from lancer.formats.qrels import read_qrels
from lancer.formats.requests import read_requests
from lancer.formats.runs import read_run
from lancer.formats.sub_questions import read_sub_questions
from lancer.schema import MATRIX
from lancer.stages.base import call
from lancer.stages.judge import Judge, JudgeConfig
from tests.scripted import Texts
from tests.stages.batches import with_matrix_inputs

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "dl19-subquestions"
WAYS: tuple[dict[str, Any], ...] = (  # the dearest last
    {"layout": "shared-prefix", "readout": "likelihood"},
    {"layout": "shared-prefix", "readout": "expected"},
    {"layout": "shared-prefix", "readout": "digit"},
    {"layout": "per-document", "readout": "digit"},
    {"layout": "published", "readout": "expected"},
    {"layout": "published", "readout": "digit"},
    {"layout": "published", "readout": "likelihood"},
)
GRADE, HUMAN = 4, 2
RESAMPLES = 2000


@dataclass(frozen=True)
class Cells:
    """What is judged: `rows` for a batch, `grades` and `human` beside the cells, row-major, as `query` is."""

    rows: list[dict[str, Any]]
    texts: dict[str, str]
    query: list[str]
    grades: list[int]
    human: list[int]


@dataclass(frozen=True)
class OneEngine:
    """What a stage is given."""

    engine: VllmEngine
    store: Texts

    def text(self, name: str) -> VllmEngine:
        return self.engine

    def scorer(self, name: str) -> PairScorer:
        raise NotImplementedError

    def search(self, name: str) -> SearchEngine:
        raise NotImplementedError

    def documents(self) -> Documents:
        return self.store

    def context(self, name: str) -> int | None:
        return context_of(self.engine.config)

    def tokens(self, name: str) -> ChatTokens | None:
        known = model_tokens(self.engine.config)
        return None if known is None else known.chat


def cells(queries: int, documents: int, sub_questions: int) -> Cells:
    """The same for every way."""
    grades = {(q.query_id, q.sub_topic, q.doc_id): q.grade for q in read_qrels(DATA / "grades.subquestions.txt.gz")}
    human = {(q.query_id, q.doc_id): q.grade for q in read_qrels(DATA / "qrels.nist.txt")}
    run = read_run(DATA / "candidates.bm25-judged-pool.run").rankings
    asked = read_sub_questions(DATA / "subquestions.tsv")
    rows, query, values, people, wanted = [], [], [], [], set()
    for request in read_requests(DATA / "queries.tsv")[:queries]:
        drawn = sorted((d for d, _ in run[request.query_id]), key=lambda d: sha256(d.encode()).digest())[:documents]
        questions = asked[request.query_id][:sub_questions]
        rows.append({"query_id": request.query_id, "candidates": drawn, "sub_questions": [q.text for q in questions]})
        rows[-1]["text"] = request.text
        for doc_id in drawn:
            for question in questions:
                query.append(request.query_id)
                values.append(grades[request.query_id, question.id, doc_id])
                people.append(human.get((request.query_id, doc_id), 0))
        wanted.update(drawn)
    texts = {d.doc_id: d.text for d, _, _ in read_corpus(DATA / "docs.jsonl.gz") if d.doc_id in wanted}
    return Cells(rows, texts, query, values, people)


def judged(way: dict[str, Any], what: Cells, engine: VllmEngine) -> list[float]:
    """The values of all cells, NaN = none. Speed is for `tests.benchmarks.judging`: here the cache is warm by then."""
    stage = Judge(JudgeConfig(**way))
    table, _ = call(stage, with_matrix_inputs(stage, what.rows), OneEngine(engine, Texts(what.texts)))
    values = [v for row in table[MATRIX[stage.scale].values.name].to_pylist() for line in row for v in line]
    return [np.nan if v is None else v for v in values]


def agreement(values: Sequence[float], what: Cells) -> dict[str, float]:
    """Figures of the half of the queries that nothing was fitted on."""
    found, query = np.nan_to_num(np.array(values, dtype=np.float64)), np.array(what.query)
    grade, human = np.array(what.grades) >= GRADE, np.array(what.human) >= HUMAN
    fitted = development(what)
    fit = np.array([q in fitted for q in what.query])
    knots = fit_isotonic(found[fit], grade[fit].astype(np.float64))
    probability = apply_knots(knots, found)
    tau, _ = best_threshold(lambda t: f1(probability[fit] >= t, grade[fit]), 1.0)
    test = ~fit
    after = figures(probability[test], grade[test].astype(np.float64), grade[test])
    constant = float(np.mean((grade[fit].mean() - grade[test]) ** 2))
    low, high = interval(found[test], grade[test], query[test])
    both = (grade & human)[test]
    human_low, human_high = interval(found[test], both, query[test])
    return {
        "auc": auc(found[test], grade[test]),
        "auc_low": low,
        "auc_high": high,
        "auc_human": auc(found[test], both),
        "auc_human_low": human_low,
        "auc_human_high": human_high,
        "brier": after.error,
        "brier_constant": constant,
        "tau": tau,
        "unread": float(np.isnan(values).mean()),
        "f1": f1(probability[test] >= tau, grade[test]),
        "f1_all": f1(np.ones(int(test.sum()), dtype=np.bool_), grade[test]),
    }


def development(what: Cells) -> set[str]:
    """The half of the queries whose ids have the smallest hashes."""
    ids = sorted(set(what.query), key=lambda q: sha256(q.encode()).digest())
    return set(ids[: len(ids) // 2])


def interval(values: Any, positive: Any, query: Any) -> tuple[float, float]:
    """2.5 and 97.5 % of the AUC over queries drawn with replacement."""
    chance = np.random.default_rng(0)
    ids = np.unique(query)
    rows = {q: np.flatnonzero(query == q) for q in ids}
    draws = []
    for _ in range(RESAMPLES):
        chosen = np.concatenate([rows[q] for q in chance.choice(ids, len(ids))])
        draws.append(auc(values[chosen], positive[chosen]))
    low, high = np.nanpercentile(draws, [2.5, 97.5])
    return float(low), float(high)


def measure(
    queries: int,
    documents: int,
    sub_questions: int,
    only: Sequence[str] = (),
    say: Callable[[str, dict[str, float]], None] = lambda name, figures: None,
) -> dict[str, Any]:
    """All figures; the keys are those of the JSON output. `say` is told those of each way when they are there."""
    what = cells(queries, documents, sub_questions)
    fitted = development(what)
    engine = VllmEngine(VllmConfig(model="embedded:smollm2"))
    ways = {}
    try:
        for way in WAYS:
            name = f"{way['layout']} {way['readout']}"
            if only and name not in only:
                continue
            ways[name] = agreement(judged(way, what, engine), what)
            say(name, ways[name])
    finally:
        engine.close()
    return {
        "queries": len(set(what.query)),
        "development_queries": len(fitted),
        "test_queries": len(set(what.query) - fitted),
        "documents_per_query": documents,
        "sub_questions_per_query": sub_questions,
        "cells": len(what.query),
        "positive_share": float(np.mean(np.array(what.grades) >= GRADE)),
        "ways": ways,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Agreement of ratings with given grades, by layout and readout.")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--queries", type=int, default=22)
    parser.add_argument("--documents", type=int, default=4, help="of each query")
    parser.add_argument("--sub-questions", type=int, default=4, help="of each query")
    parser.add_argument("--only", action="append", default=[], metavar="'LAYOUT READOUT'")
    arguments = parser.parse_args()
    sizes = arguments.queries, arguments.documents, arguments.sub_questions
    if arguments.json:
        print(json.dumps(measure(*sizes, arguments.only)))
        return
    print(
        f"{'layout, readout':25} {'AUC':>5} {'95 % interval':>15} {'human':>6} {'95 % interval':>15} "
        f"{'Brier':>6} {'const':>6} {'F1':>5} {'all':>5} {'unread':>6}"
    )
    found = measure(*sizes, arguments.only, say)
    print(
        f"\n{found['cells']} cells: {found['queries']} queries x {found['documents_per_query']} documents x "
        f"{found['sub_questions_per_query']} sub-questions; {found['positive_share']:.3f} of them grade >= {GRADE}; "
        f"fitted on {found['development_queries']} queries, figures of the other {found['test_queries']}"
    )


def say(name: str, f: dict[str, float]) -> None:
    """A line of the table."""
    print(
        f"{name:25} {f['auc']:.3f} {f['auc_low']:6.3f} to {f['auc_high']:.3f} {f['auc_human']:6.3f} "
        f"{f['auc_human_low']:6.3f} to {f['auc_human_high']:.3f} {f['brier']:6.3f} {f['brier_constant']:6.3f} "
        f"{f['f1']:.3f} {f['f1_all']:.3f} {f['unread']:6.3f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
