"""`lancer evaluate`: paths in, text out. The last step of a run, and the first of a paper's table."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from ir_measures import Measure

from lancer.errors import UsageError, nearest
from lancer.evaluation.coverage import Cov
from lancer.evaluation.inputs import baseline_file, read_all_qrels, read_rated_pairs, read_runs
from lancer.evaluation.judgments import Judgments
from lancer.evaluation.measures import TIES, evaluate, order_of, parse_measures
from lancer.evaluation.names import DIVERSITY, cutoff_of
from lancer.evaluation.nuggets import evaluate_nuggets
from lancer.evaluation.plots import draw_coverage, plot_format
from lancer.evaluation.rated import RatedPairs
from lancer.evaluation.results import Results, collect
from lancer.evaluation.significance import CORRECTIONS, TESTS
from lancer.evaluation.stage_inputs import read_steps
from lancer.evaluation.stage_tables import render_stages
from lancer.evaluation.stages import evaluate_stages
from lancer.evaluation.tables import OUTPUTS, render
from lancer.formats.nuggets import read_nuggets
from lancer.formats.ratings import is_positional
from lancer.formats.runs import Run, read_run
from lancer.schema import Scale
from lancer.storage import Storage

PLOT_DEPTH: Final = 20

logger = logging.getLogger(__name__)


def evaluate_command(
    runs: Sequence[str],
    qrels: Sequence[str],
    measures: str,
    *,
    per_query: bool = False,
    output: str = "table",
    baseline: str | None = None,
    test: str | None = None,
    correction: str | None = None,
    ties: str = "lancer",
    plot: str | None = None,
    ratings: str | None = None,
    ratings_run: str | None = None,
    storage: Storage | None = None,
) -> str:
    """Evaluates run files and run folders against qrels; returns the table, JSON, CSV or LaTeX.

    `baseline`: the tag or path of one of the runs, or of another run file or folder, which is then evaluated too; a
    folder stands for its `run.trec`. `test` and `correction` default to the randomisation test and Holm. `ratings`: the
    matrix Cov is computed from (default: the qrels), and everything if there are no `qrels`; `ratings_run`: the run a
    positional matrix belongs to. `plot`: a .png or .svg path or URI for the coverage curve. CSV has no place for notes:
    they are logged as warnings.
    UsageError: a measure, output, plot ending, test ... that does not exist. InputError: a file that cannot be used.
    """
    asked = parse_measures(measures)
    _check_names(output, test, correction, ties)
    if plot is not None:
        plot_format(plot)
    if baseline is None and (test or correction):
        raise UsageError("a test and a correction need a baseline to compare with")
    if ratings is None and ratings_run is not None:
        raise UsageError("a run for positional ratings was given, but no ratings")
    if not qrels and ratings is None:
        raise UsageError("neither qrels nor ratings are given: there is nothing to evaluate against")
    storage = storage or Storage()
    rated = None
    if ratings is not None:
        rated = read_rated_pairs(ratings, None if ratings_run is None else read_run(ratings_run, storage), storage)
        rated.check(asked)
    judgments = read_all_qrels(qrels, storage) if qrels else None
    named = read_runs(runs, storage)
    name = None if baseline is None else _baseline(baseline, named, storage)
    shared = []
    if ratings is not None and ratings_run is not None and is_positional(ratings, storage):
        shared.append(f"{ratings} has no document ids: row i is taken for document i of {ratings_run}")
    evaluations = {}
    for run_name, (_, run) in named.items():
        evaluation = evaluate(run.rankings, judgments, asked, ties=ties, ratings=rated)
        evaluations[run_name] = replace(evaluation, notes=(*run.notes, *shared, *evaluation.notes))
    results = collect(evaluations, baseline=name, test=test, correction=correction)
    if plot is not None:
        orders = {
            run_name: {query_id: order_of(ranking, ties) for query_id, ranking in run.rankings.items()}
            for run_name, (_, run) in named.items()
        }
        pairs = rated or RatedPairs.of_judgments(Judgments(judgments or ()))
        storage.write(plot, _plot(orders, pairs, results.queries, asked, plot_format(plot)))
    return _rendered(results, output, per_query)


def evaluate_nuggets_command(
    assignments: Sequence[str],
    *,
    per_query: bool = False,
    output: str = "table",
    baseline: str | None = None,
    test: str | None = None,
    correction: str | None = None,
    without_vital: str = "zero",
    storage: Storage | None = None,
) -> str:
    """The nugget measures of answers: one file of assignments per system, named by its path; `baseline` is one path."""
    _check_names(output, test, correction)
    systems = {path: evaluate_nuggets(read_nuggets(path, storage), without_vital=without_vital) for path in assignments}
    return _rendered(collect(systems, baseline=baseline, test=test, correction=correction), output, per_query)


def evaluate_stages_command(
    stages: Sequence[str],
    qrels: Sequence[str],
    measures: str = "",
    *,
    kept: Sequence[int] = (),
    rel: int = 1,
    output: str = "table",
    storage: Storage | None = None,
) -> str:
    """What each stage of a funnel keeps and loses: `lancer.evaluation.stages`; the table, JSON, CSV or LaTeX.

    `stages`: one run folder, or run files in order. CSV has no place for notes: they are logged as warnings.
    UsageError: a measure, output, number that does not exist. InputError: a file that cannot be used.
    """
    _check_names(output, None, None)
    if not qrels:
        raise UsageError("stages are evaluated against judgments, and no qrels are given")
    asked = parse_measures(measures) if measures else []
    if any(measure.NAME == Cov.NAME for measure in asked):
        raise UsageError("Cov of a stage is not computed; sub-topic recall says how many sub-topics it answers")
    storage = storage or Storage()
    found = evaluate_stages(read_steps(stages, kept, storage), read_all_qrels(qrels, storage), asked, rel=rel)
    if output == "csv":
        for stage in found:
            for note in stage.notes:
                logger.warning("%s: %s", stage.name, note)
    return render_stages(found, output)


def _check_names(output: str, test: str | None, correction: str | None, ties: str = TIES[0]) -> None:
    """UsageError before any file is read."""
    given = (("output", output, OUTPUTS), ("ties", ties, TIES))
    for what, value, allowed in (*given, ("test", test, TESTS), ("correction", correction, CORRECTIONS)):
        if value is not None and value not in allowed:
            raise UsageError(f"{what} {value!r} does not exist{nearest(value, allowed)}")


def _baseline(baseline: str, named: dict[str, tuple[str, Run]], storage: Storage) -> str:
    """The name of the baseline among the runs; a run file that is not among them is added."""
    if baseline in named:
        return baseline
    file = baseline_file(baseline, storage)
    if file is None:
        raise UsageError(f"baseline {baseline!r} is neither one of the runs nor a run file{nearest(baseline, named)}")
    for name, (path, _) in named.items():
        if path == file:
            return name
    run = read_run(file, storage)
    name = file if run.tag in named else run.tag
    named[name] = (file, run)
    return name


def _plot(
    orders: Mapping[str, Mapping[str, Sequence[str]]],
    rated: RatedPairs,
    queries: Sequence[str],
    measures: Sequence[Measure],
    format: str,
) -> bytes:
    cov = _curve_measure(measures, rated)
    depth = max([PLOT_DEPTH, *(cutoff_of(measure) or 0 for measure in measures)])
    curves = {}
    for name, rankings in orders.items():
        total = [0.0] * depth
        for query_id in queries:
            curve = rated.curve(cov, query_id, rankings.get(query_id, ()), depth)
            total = [sum(pair) for pair in zip(total, curve, strict=True)]
        curves[name] = [value / len(queries) for value in total]
    return draw_coverage(curves, label=f"Cov(tau={cov['tau']}, of={cov['of']})@k", format=format)


def _curve_measure(measures: Sequence[Measure], rated: RatedPairs) -> Measure:
    """The first Cov of `measures`; else one by the grade the diversity measures count from, or one that is reached."""
    chosen: Measure | None = next((measure for measure in measures if measure.NAME == Cov.NAME), None)
    levels = [measure["rel"] for measure in measures if measure.NAME in DIVERSITY]
    if chosen is None:
        chosen = Cov if rated.highest >= Cov["tau"] else Cov(tau=1)
        if rated.scale is Scale.probability:
            chosen = Cov(tau=Scale.probability.maximum / 2)
        elif levels:
            chosen = Cov(tau=levels[0])
    return chosen


def _rendered(results: Results, output: str, per_query: bool) -> str:
    if output == "csv":
        for name, evaluation in results.evaluations.items():
            for note in evaluation.notes:
                logger.warning("%s: %s", name, note)
    return render(results, output, per_query=per_query)
