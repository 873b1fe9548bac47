"""Calls that the cascade saves against alpha_nDCG lost: `python -m tests.benchmarks.cascade [--json]`.

On the 22 queries × 100 candidates × 10 sub-questions of `../shared/data/dl19-subquestions`: the recorded grades answer
for the judge, MiniLM is the estimator, and no LLM is called. "Saved" is the share of the 1,000 calls per query that are
not made; "lost" is alpha_nDCG(rel=4)@10 of the same selector after judging everything, minus that of the cascade.

    exact      `judge.only.until` alone: the share saved with nothing lost, by cells per round; `clairvoyant` asks in
               the order that the grades themselves suggest, one cell at a time
    curve      for each bound on the loss: of all settings of `judge.only` (top_documents, probe, uncertain, until exact
               or with slack) and both ways from probability to rating the one that saves most within the bound on the
               training folds; saved and lost are of the queries held out, with 95 % bootstrap intervals over queries
    careful    the same where the loss on the training folds plus its standard error keeps the bound
    kinds      as `curve`, at .01, for parts of `judge.only` alone
    chosen     the setting that saves most at .01 on all queries: for a config; its figures are not held out
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lancer.engines.bi_encoder import BiEncoder, BiEncoderConfig
from lancer.engines.protocols import Block
from lancer.evaluation.alpha_ndcg import alpha_ndcg
from lancer.evaluation.calibration import apply_knots, auc, fit_isotonic
from lancer.schema import Scale
from lancer.selection import CoverageMatrix, Selector, parse_selector
from lancer.selection.lazy import Lazy
from lancer.selection.matrix import BoolArray, FloatArray
from lancer.stages.cascade import Cascade, JudgeOnly, RatingOf, Until, linear
from tests.benchmarks import dl19

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "dl19-subquestions"
SELECTORS = ("greedy-coverage(tau=4)", "sum(tau=1)")
K = 10
GRADE = 4
BOUNDS = (0.0, 0.01, 0.02, 0.05)
FOLDS = 5
ROUNDS = (1, 16, 32, 64, 256)
ROUND = 32
RESAMPLES = 10_000

PROBES = (None, 1, 2, 3, 4)
TOPS = (None, 10, 12, 15, 20, 25, 30, 40, 50, 70)
LOWS = (0.0, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6)
SLACKS = (0.1, 0.2)


@dataclass(frozen=True, eq=False)
class Query:
    """grades, probabilities: (candidates, sub-questions). ideal: the alpha-DCG that alpha_nDCG divides by."""

    query_id: str
    doc_ids: list[str]
    grades: FloatArray
    probabilities: FloatArray
    answers: dict[str, set[str]]
    full: dict[str, float] = field(default_factory=dict)  # selector → alpha_nDCG with all cells judged

    @cached_property
    def _ideal(self) -> float:
        best = max(range(len(self.doc_ids)), key=lambda i: (self.grades[i] >= GRADE).sum())
        order = [best, *(i for i in range(len(self.doc_ids)) if i != best)]
        return self._gained(order) / alpha_ndcg([self.doc_ids[i] for i in order], self.answers, cutoff=K)

    def ndcg(self, order: Sequence[int]) -> float:
        """alpha_nDCG(rel=4)@10 of rows, best first."""
        return self._gained(order) / self._ideal

    def _gained(self, order: Sequence[int]) -> float:
        left, total = np.ones(self.grades.shape[1]), 0.0
        for rank, row in enumerate(order[:K], start=1):
            answered = self.grades[row] >= GRADE
            total += float(left[answered].sum()) / math.log2(rank + 1)
            left[answered] *= 0.5
        return total


@dataclass(frozen=True)
class Setting:
    """One cascade: `judge.only`, and which map from probability to rating."""

    top: int | None
    low: float
    calibrated: bool
    probe: int | None = None
    lazily: bool = False
    slack: float | None = None

    @property
    def kind(self) -> str:
        parts = ("top_documents" if self.top else "", "probe" if self.probe else "", "uncertain" if self.band else "")
        lazily = "" if not self.lazily else "until" if self.slack is None else "until(slack)"
        return " + ".join(part for part in (*parts, lazily) if part)

    @property
    def band(self) -> tuple[float, float] | None:
        return (self.low, 1.0) if self.low > 0 else None

    def only(self, selector: str) -> JudgeOnly:
        """As in a config."""
        until = Until(selector=selector, k=K, round=ROUND, slack=self.slack) if self.lazily else None
        return JudgeOnly(top_documents=self.top, probe=self.probe, uncertain=self.band, until=until)

    def describe(self, selector: str) -> str:
        return f"{self.only(selector)}; ratings by {'isotonic' if self.calibrated else '5 p'}"


@dataclass(frozen=True, eq=False)
class Fold:
    """Training queries, and the map from probability to rating that is learnt from them."""

    train: tuple[Query, ...]

    @cached_property
    def calibration(self) -> RatingOf:
        """As `lancer calibrate` fits it: isotonic regression of the grade."""
        values = np.concatenate([q.probabilities.ravel() for q in self.train])
        knots = fit_isotonic(values, np.concatenate([q.grades.ravel() for q in self.train]))
        return lambda p: apply_knots(knots, p)

    def spend(self, query: Query, setting: Setting, selector: str) -> tuple[float, float]:
        """(saved, lost) of one query."""
        if not setting.calibrated:
            return _spend(query, setting, selector, linear)
        return _spend(query, setting, selector, self.calibration)


@cache  # without a calibration the same in all folds
def _spend(query: Query, setting: Setting, selector: str, rating_of: RatingOf) -> tuple[float, float]:
    calls, ratings = judged(query, setting.only(selector), rating_of)
    order = parse_selector(selector).order(CoverageMatrix(ratings, Scale.rating))
    return 1 - calls / ratings.size, query.full[selector] - query.ndcg(order.tolist())


def judged(query: Query, only: JudgeOnly, rating_of: RatingOf) -> tuple[int, FloatArray]:
    """Calls, and the matrix: the grade where the cascade asks, else the estimate."""
    cascade = Cascade(only, query.probabilities, [True] * len(query.doc_ids), rating_of=rating_of)
    ratings, calls = cascade.ratings.copy(), 0
    while cells := cascade.ask():
        calls += len(cells)
        for cell in cells:
            ratings[cell] = query.grades[cell]
        cascade.tell({cell: float(query.grades[cell]) for cell in cells})
    return calls, ratings


def read_queries() -> list[Query]:
    """The data, with MiniLM's probabilities."""
    texts, sub_questions, grades = dl19.read_texts(DATA), dl19.read_sub_questions(DATA), dl19.read_grades(DATA)
    engine = BiEncoder(BiEncoderConfig(model="embedded:minilm"))
    queries = []
    for query_id, doc_ids in dl19.read_candidates(DATA).items():
        asked = sub_questions[query_id]
        block = Block(tuple(texts[d] for d in doc_ids), tuple(asked.values()))
        table = np.array([[grades[query_id, j, d] for j in asked] for d in doc_ids], dtype=np.float64)
        answers: dict[str, set[str]] = {j: set() for j in asked}
        for (of, j, doc_id), grade in grades.items():
            if of == query_id and grade >= GRADE:
                answers[j].add(doc_id)
        scores = engine.score([block])[0].scores.astype(np.float64)
        queries.append(Query(query_id, doc_ids, table, scores, answers))
    for query in queries:
        for spec in SELECTORS:
            order = parse_selector(spec).order(CoverageMatrix(query.grades, Scale.rating)).tolist()
            query.full[spec] = query.ndcg(order)
            ids = [query.doc_ids[i] for i in order]
            assert math.isclose(query.full[spec], alpha_ndcg(ids, query.answers, cutoff=K))
    return queries


def exact(queries: Sequence[Query], selector: Selector) -> dict[str, float]:
    """Mean share of calls saved by `until` alone, by cells per round; its top k is asserted."""
    figures = {}
    for name, size in [("clairvoyant", 1), *((str(size), size) for size in ROUNDS)]:
        shares = []
        for query in queries:
            zero = np.zeros_like(query.grades)
            guess = query.grades if name == "clairvoyant" else 5.0 * query.probabilities
            lazy, calls = Lazy(selector, K, zero, zero + 5.0, guess, scale=Scale.rating), 0
            while not lazy.decided:
                cells = lazy.ask(size)
                calls += len(cells)
                lazy.tell([(cell, float(query.grades[cell])) for cell in cells])
            assert lazy.chosen == selector.order(CoverageMatrix(query.grades, Scale.rating))[:K].tolist()
            shares.append(1 - calls / query.grades.size)
        figures[name] = float(np.mean(shares))
    return figures


Spent = dict[Setting, FloatArray]
"""Setting → (queries, 2): saved and lost."""

_Asked = tuple[float, str | None, Callable[[FloatArray], float]]


def spend_all(fold: Fold, queries: Sequence[Query], settings: Iterable[Setting], selector: str) -> Spent:
    return {s: np.array([fold.spend(q, s, selector) for q in queries]) for s in settings}


def search(fold: Fold, selector: str) -> Spent:
    """What the settings spend on the training queries: without rounds, the best for each bound lazily as well.

    The exact lazy form loses nothing more and saves most where most is left, so it need not be searched for: it takes
    fifty times as long as the others.
    """
    grid = itertools.product(TOPS, LOWS, (False, True), PROBES)
    settings = [Setting(*s) for s in grid if (s[0] or s[1]) and ((s[0] and not s[1]) or not s[3])]
    spent = spend_all(fold, fold.train, settings, selector)
    rules = itertools.product(BOUNDS, (lost, careful))
    finalists = dict.fromkeys(f for bound, loss in rules if (f := best(spent, bound, None, loss)) is not None)
    slacks: list[float | None] = [None, *SLACKS]
    alone = [Setting(None, 0.0, calibrated) for calibrated in (False, True)]
    lazily = [replace(s, lazily=True, slack=slack) for s in (*finalists, *alone) for slack in slacks]
    return spent | spend_all(fold, fold.train, dict.fromkeys(lazily), selector)


def saved(spent: FloatArray) -> float:
    return float(spent[:, 0].mean())


def lost(spent: FloatArray) -> float:
    return float(spent[:, 1].mean())


def careful(spent: FloatArray) -> float:
    """The loss and its standard error."""
    return lost(spent) + float(spent[:, 1].std(ddof=1)) / math.sqrt(len(spent))


def best(spent: Spent, bound: float, kind: str | None, loss: Callable[[FloatArray], float]) -> Setting | None:
    """The setting that saves most and loses at most `bound`; of one kind, or of any."""
    within = [s for s, values in spent.items() if loss(values) <= bound and kind in (None, s.kind)]
    return max(within, key=lambda s: (saved(spent[s]), -lost(spent[s])), default=None)


def curve(queries: Sequence[Query], selector: str) -> dict[str, Any]:
    """The cross-validated figures of one selector."""
    chance = np.random.default_rng(0)
    parts = np.array_split(chance.permutation(len(queries)), FOLDS)
    kinds = sorted({s.kind for s in _kinds()})
    asked: list[_Asked] = [(b, None, loss) for b in BOUNDS for loss in (lost, careful)]
    asked += [(0.01, kind, lost) for kind in kinds]
    held: dict[_Asked, list[FloatArray]] = defaultdict(list)
    picks: dict[_Asked, list[str]] = defaultdict(list)
    for part in parts:
        fold = Fold(tuple(q for i, q in enumerate(queries) if i not in part))
        spent = search(fold, selector)
        for each in asked:
            setting = best(spent, *each)
            test = [queries[i] for i in part]
            nothing = np.zeros((len(test), 2))  # no setting keeps the bound: everything is judged
            held[each].append(
                nothing if setting is None else np.array([fold.spend(q, setting, selector) for q in test])
            )
            picks[each].append("everything" if setting is None else setting.describe(selector))

    def found(*key: Any) -> dict[str, Any]:
        return figures(held[key]) | {"picked": Counter(picks[key]).most_common()}

    spent = search(Fold(tuple(queries)), selector)
    chosen = best(spent, 0.01, None, lost)
    assert chosen is not None
    return {
        "full": float(np.mean([q.full[selector] for q in queries])),
        "curve": {str(b): found(b, None, lost) for b in BOUNDS},
        "careful": {str(b): found(b, None, careful) for b in BOUNDS},
        "kinds": {kind: found(0.01, kind, lost) for kind in kinds},
        "chosen": {
            "setting": chosen.describe(selector),
            "saved": saved(spent[chosen]),
            "lost": lost(spent[chosen]),
        },
    }


def _kinds() -> list[Setting]:
    """One setting of each kind that is searched through, and `until` by itself."""
    alone = [Setting(None, 0.0, False, lazily=True, slack=slack) for slack in (None, SLACKS[0])]
    tops = [Setting(10, 0.0, False, probe) for probe in (None, 1)]
    return [*alone, *tops, Setting(None, 0.5, False), Setting(10, 0.5, False)]


def figures(held: Sequence[FloatArray]) -> dict[str, Any]:
    """Means over the held-out queries, with 95 % intervals by resampling queries."""
    values = np.concatenate(held)
    rows = np.random.default_rng(0).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(values[rows].mean(axis=1), [2.5, 97.5], axis=0)
    return {
        name: {"mean": float(values[:, i].mean()), "low": float(low[i]), "high": float(high[i])}
        for i, name in enumerate(("saved", "lost"))
    }


def measure(queries: Sequence[Query]) -> dict[str, Any]:
    """All figures, by selector."""
    probabilities = np.concatenate([q.probabilities.ravel() for q in queries])
    positive: BoolArray = np.concatenate([q.grades.ravel() >= GRADE for q in queries])
    return {
        "queries": len(queries),
        "auc": auc(probabilities, positive),
        "by_selector": {
            spec: {"exact": exact(queries, parse_selector(spec))} | curve(queries, spec) for spec in SELECTORS
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Calls that the cascade saves against alpha_nDCG lost.")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    as_json = parser.parse_args().json
    if not DATA.is_dir():
        raise SystemExit(f"needs {DATA}")
    started = time.monotonic()
    result = measure(read_queries()) | {"seconds": round(time.monotonic() - started, 1)}
    if as_json:
        print(json.dumps(result))
        return
    print(f"{result['queries']} queries, AUC of the estimator {result['auc']:.3f}, {result['seconds']} s")
    for spec, values in result["by_selector"].items():
        print(f"\n{spec}: alpha_nDCG(rel=4)@10 {values['full']:.4f} with everything judged")
        print("  exact, saved by round: " + ", ".join(f"{n} {v:.3f}" for n, v in values["exact"].items()))
        for rule, bound in itertools.product(("curve", "careful"), values["curve"]):
            found = values[rule][bound]
            print(f"  {rule}, lost at most {bound:<5} {_shown(found)}")
            for setting, folds in found["picked"]:
                print(f"      {folds} folds: {setting}")
        for kind, found in values["kinds"].items():
            print(f"  at .01, {kind:45} {_shown(found)}")
        chosen = values["chosen"]
        print(f"  at .01 on all: {chosen['setting']}: saved {chosen['saved']:.3f}, lost {chosen['lost']:.4f}")


def _shown(found: dict[str, Any]) -> str:
    saved_, lost_ = found["saved"], found["lost"]
    return (
        f"saved {saved_['mean']:.3f} ({saved_['low']:.3f} to {saved_['high']:.3f}), "
        f"lost {lost_['mean']:.4f} ({lost_['low']:.4f} to {lost_['high']:.4f})"
    )


if __name__ == "__main__":
    main()
