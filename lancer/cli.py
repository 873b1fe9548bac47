"""The `lancer` command: thin, every subcommand calls one function of the library. Exit codes: `lancer.errors`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import lancer
from lancer.errors import LancerError, PlanError, UsageError

INTERRUPTED = 130
DEFAULT_MEASURES = "alpha_nDCG@10 StRecall@10 nDCG@10"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; returns the exit code."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    # argparse ends a list of positional arguments at the first option: overrides may also stand behind one.
    if rest and not (hasattr(arguments, "overrides") and all("=" in r and not r.startswith("-") for r in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides += rest
    try:
        code: int = arguments.call(arguments)
    except LancerError as error:
        sys.stderr.write(f"lancer: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("lancer: interrupted; what was finished is kept, the same command goes on from there\n")
        return INTERRUPTED
    except BrokenPipeError:
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lancer", description=lancer.__doc__ and lancer.__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=f"lancer {lancer.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = _command(commands, "run", "carry out a run, or what is missing of it", _run)
    _config_arguments(run)
    mode = run.add_mutually_exclusive_group()
    for name, text in (
        ("resume", "go on with the run in the output folder (default)"),
        ("overwrite", "replace the run in the output folder"),
        ("fail-if-exists", "refuse an output folder that holds a run"),
    ):
        mode.add_argument(f"--{name}", dest="mode", action="store_const", const=name, help=text)
    run.add_argument("--retry-failed", action="store_true", help="also do again what failed")
    run.add_argument("--dry-run", action="store_true", help="show the plan and stop")
    run.set_defaults(mode="resume")

    plan = _command(commands, "plan", "show stages, columns, engines and the hardware they need", _plan)
    _config_arguments(plan)
    plan.add_argument(
        "--estimate", action="store_true", help="forecast calls, tokens, money and time; kept in `output`"
    )
    plan.add_argument("--sample", type=_count, metavar="N", help="queries that the forecast looks at (default 8)")
    plan.add_argument("--rates", metavar="RUN", help="folder of an earlier run that tells how fast the engines are")

    validate = _command(commands, "validate", "check a config and its inputs without loading a model", _validate)
    _config_arguments(validate)

    doctor = _command(commands, "doctor", "check this machine: Python, Java, vLLM, GPU, Ray, models, storage", _doctor)
    doctor.add_argument("--storage", metavar="URI", help="also try to write and read below this folder or s3:// prefix")
    doctor.add_argument("--endpoint", metavar="URL", help="of that object store (default: the AWS settings)")
    _output_argument(doctor)

    status = _command(commands, "status", "how far a run is, what failed and what it has cost so far", _status)
    _folder_arguments(status)
    status.add_argument("--watch", type=_seconds, metavar="SECONDS", help="again and again, while somebody runs it")

    cost = _command(commands, "cost", "what a run has cost, by stage, query and engine", _cost)
    _folder_arguments(cost)

    select = _command(commands, "select", "rankings from a stored coverage matrix, without any engine", _select)
    select.add_argument("--matrix", required=True, metavar="PATH", help="a run folder, coverage.parquet, rating file")
    select.add_argument("--selector", action="append", required=True, metavar="SPEC", help="repeatable")
    select.add_argument("--output", required=True, metavar="PATH", help="a run file; a folder for several selectors")
    select.add_argument("--run", metavar="RUN", help="the candidates in first-stage order; positional files need it")
    select.add_argument("--second-order", metavar="RUN", help="for ties=second and rest=second")
    select.add_argument("--token-counts", metavar="FILE", help="doc_id<TAB>count lines, for budget")
    select.add_argument("--explain", metavar="FILE", help="JSON Lines: what each document newly covers")

    calibrate = _command(commands, "calibrate", "fit a run's values to graded labels, and find a tau", _calibrate)
    calibrate.add_argument("--matrix", required=True, metavar="PATH", help="a run folder, or its coverage.parquet")
    calibrate.add_argument("--qrels", required=True, metavar="FILE", help="grades; sub-question ids in column 2")
    calibrate.add_argument("--output", required=True, metavar="FILE", help="the calibration, for judge or estimate")
    development = calibrate.add_mutually_exclusive_group(required=True)
    development.add_argument("--queries", metavar="FILE", help="ids of the development queries, one per line")
    development.add_argument("--share", type=float, metavar="F", help="the development queries: this share, by hash")
    calibrate.add_argument("--target", default="probability", choices=("probability", "grade"))
    calibrate.add_argument("--rel", type=int, default=4, metavar="N", help="grade that counts as answered (default 4)")
    calibrate.add_argument("--selector", metavar="SPEC", help="find its best tau (default: the best F1 of cells)")
    calibrate.add_argument("--measure", metavar="NAME", help="of its rankings (default alpha_nDCG(rel=N)@10)")
    calibrate.add_argument("--print", dest="form", default="text", choices=("text", "json"), help="how to print")

    evaluate = _command(commands, "evaluate", "score runs against judgments, or answers by their nuggets", _evaluate)
    evaluate.add_argument("--run", nargs="+", default=[], metavar="RUN", help="run files or run folders")
    evaluate.add_argument(
        "--stages",
        nargs="+",
        default=[],
        metavar="RUN",
        help="the stages of a funnel: a run folder, or run files in order",
    )
    evaluate.add_argument("--kept", nargs="+", type=int, default=[], metavar="N", help="documents after each stage")
    evaluate.add_argument("--rel", type=int, default=1, metavar="GRADE", help="of stages: relevant from here on")
    evaluate.add_argument("--qrels", nargs="+", default=[], metavar="FILE", help="optional when --ratings is given")
    evaluate.add_argument("--measures", metavar="NAMES", help=f"default, of runs: {DEFAULT_MEASURES}")
    evaluate.add_argument("--per-query", action="store_true")
    evaluate.add_argument("--output", default="table", choices=("table", "json", "csv", "latex"))
    evaluate.add_argument("--baseline", metavar="RUN", help="compare the others with this run: its tag, file or folder")
    evaluate.add_argument("--test", choices=("randomisation", "t"))
    evaluate.add_argument("--correction", choices=("holm", "bh"))
    evaluate.add_argument("--ties", default="lancer", choices=("lancer", "trec_eval", "pyndeval"))
    evaluate.add_argument("--ratings", metavar="PATH", help="what Cov is computed from: a run folder, a rating file")
    evaluate.add_argument("--ratings-run", metavar="RUN", help="the run that a positional rating file belongs to")
    evaluate.add_argument("--plot", metavar="FILE", help="coverage@k of each run, .png or .svg")
    evaluate.add_argument(
        "--assignments",
        nargs="+",
        default=[],
        metavar="FILE",
        help="nuggets of answers instead of runs, one per system",
    )
    evaluate.add_argument(
        "--without-vital",
        choices=("zero", "skip"),
        help="topics without vital nuggets count 0 (default) or are left out",
    )
    return parser


def _command(commands: Any, name: str, text: str, call: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    parser.set_defaults(call=call)
    return parser


def _config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="a YAML file: one complete run")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key.path=value", help="changes to it; values are YAML"
    )
    _output_argument(parser)


def _folder_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run folder, local or s3://")
    parser.add_argument("--endpoint", metavar="URL", help="of its object store (default: the AWS settings)")
    _output_argument(parser)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: a number of seconds above 0")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: a number from 1")
    return int(text)


def _output_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", dest="form", default="text", choices=("text", "json"), help="how to print")


def _run(arguments: argparse.Namespace) -> int:
    from lancer.config import load_config
    from lancer.pipeline.distributed.runner import run
    from lancer.pipeline.summary import show

    if arguments.dry_run:
        return _plan(arguments)
    config = load_config(arguments.config, arguments.overrides)
    result = run(config, mode=arguments.mode, retry_failed=arguments.retry_failed, say=_say)
    if arguments.form == "json":
        _print_json(result.as_dict())
    else:
        show(result)
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from lancer.pipeline.describe import describe, plan_run
    from lancer.pipeline.resume import Mode
    from lancer.pipeline.summary import wide_console

    if getattr(arguments, "estimate", False):
        return _estimate(arguments)
    if getattr(arguments, "sample", None) or getattr(arguments, "rates", None):
        raise UsageError("--sample and --rates are about --estimate")
    mode: Mode = getattr(arguments, "mode", "resume")
    retry = getattr(arguments, "retry_failed", False)
    description = describe(*plan_run(arguments.config, arguments.overrides, mode, retry_failed=retry))
    if arguments.form == "json":
        _print_json(description.as_dict())
    else:
        wide_console().print(description.render())
    return 0


def _estimate(arguments: argparse.Namespace) -> int:
    from lancer.pipeline.describe import describe, plan_run
    from lancer.pipeline.estimating import SAMPLE, estimate_run, over_budget
    from lancer.pipeline.estimating_tables import render_forecast
    from lancer.pipeline.summary import wide_console

    plan, work, reuse = plan_run(arguments.config, arguments.overrides)
    sample = min(arguments.sample or SAMPLE, plan.inputs.table.num_rows)
    _say(f"counting what {sample} queries would ask")
    found = estimate_run(plan, sample=sample, rates=arguments.rates)
    if arguments.form == "json":
        _print_json(describe(plan, work, reuse).as_dict() | {"estimate": found.as_dict()})
    else:
        wide_console().print(describe(plan, work, reuse).render())
        wide_console().print(render_forecast(found, plan.config.limits))
    over = over_budget(plan.config.limits, found)
    if over:
        raise PlanError(f"the run is forecast to take {' and '.join(over)}: raise the limit, or ask for less")
    return 0


def _validate(arguments: argparse.Namespace) -> int:
    from lancer.pipeline.describe import validated

    plan = validated(arguments.config, arguments.overrides)
    if arguments.form == "json":
        _print_json({"valid": True, "queries": plan.inputs.table.num_rows, "notes": plan.inputs.notes})
        return 0
    for note in plan.inputs.notes:
        sys.stdout.write(f"note: {note}\n")
    sys.stdout.write(f"{arguments.config} is valid: {plan.inputs.table.num_rows} queries\n")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from lancer.doctor import examine, render
    from lancer.pipeline.summary import wide_console

    checks = examine(arguments.storage, arguments.endpoint)
    if arguments.form == "json":
        _print_json([check.as_dict() for check in checks])
    else:
        wide_console().print(render(checks))
    return 0 if all(check.ok for check in checks) else 5


def _status(arguments: argparse.Namespace) -> int:
    from lancer.pipeline.status import StatusReader
    from lancer.pipeline.status_tables import render_status
    from lancer.pipeline.summary import wide_console

    reader, console = StatusReader(arguments.run, arguments.endpoint), wide_console()
    with contextlib.suppress(KeyboardInterrupt):  # it ends the watching, not the run
        for status in reader.watch(arguments.watch) if arguments.watch else [reader.read()]:
            if arguments.form == "json":
                _print_json(status.as_dict())
            else:
                if arguments.watch:
                    console.clear()
                console.print(render_status(status))
            sys.stdout.flush()
    return 0


def _cost(arguments: argparse.Namespace) -> int:
    from lancer.pipeline.cost import cost_of
    from lancer.pipeline.cost_tables import render_cost
    from lancer.pipeline.estimating_tables import comparison_table
    from lancer.pipeline.folder import open_run
    from lancer.pipeline.foretold import compare_kept
    from lancer.pipeline.summary import wide_console
    from lancer.storage import Storage, StorageConfig

    run = open_run(arguments.run, Storage(StorageConfig(endpoint_override=arguments.endpoint)))
    cost, foretold = cost_of(run), compare_kept(run)
    if arguments.form == "json":
        _print_json(cost.as_dict() | {"foretold": [asdict(row) for row in foretold]})
        return 0
    wide_console().print(render_cost(cost))
    if foretold:
        wide_console().print(comparison_table(foretold))
    return 0


def _select(arguments: argparse.Namespace) -> int:
    from lancer.pipeline.reselect import reselect

    result = reselect(
        arguments.matrix,
        arguments.selector,
        arguments.output,
        run=arguments.run,
        second_order=arguments.second_order,
        token_counts=arguments.token_counts,
        explain=arguments.explain,
    )
    for note in result.notes:
        _say(f"note: {note}")
    if result.missing:
        _say(f"note: cells without a value, counted 0: {result.missing}")
    for spec, path in result.files.items():
        sys.stdout.write(f"{spec}: {result.queries} queries in {path}\n")
    return 0


def _calibrate(arguments: argparse.Namespace) -> int:
    from lancer.pipeline.calibrate import calibrate
    from lancer.pipeline.calibrate_tables import render
    from lancer.pipeline.summary import wide_console

    result = calibrate(
        arguments.matrix,
        arguments.qrels,
        arguments.output,
        rel=arguments.rel,
        target=arguments.target,
        queries=arguments.queries,
        share=arguments.share,
        selector=arguments.selector,
        measure=arguments.measure,
    )
    if arguments.form == "json":
        _print_json(result.as_dict())
    else:
        wide_console().print(render(result))
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from lancer.evaluation.command import evaluate_command

    if arguments.assignments:
        return _evaluate_nuggets(arguments)
    if arguments.stages:
        return _evaluate_stages(arguments)
    if not arguments.run:
        raise UsageError("evaluate needs --run, --stages or --assignments")
    if arguments.kept or arguments.rel != 1:
        raise UsageError("--kept and --rel are about --stages, of which there are none")
    if arguments.without_vital:
        raise UsageError("--without-vital is about --assignments, of which there are none")
    text = evaluate_command(
        runs=arguments.run,
        qrels=arguments.qrels,
        measures=arguments.measures or DEFAULT_MEASURES,
        per_query=arguments.per_query,
        output=arguments.output,
        baseline=arguments.baseline,
        test=arguments.test,
        correction=arguments.correction,
        ties=arguments.ties,
        plot=arguments.plot,
        ratings=arguments.ratings,
        ratings_run=arguments.ratings_run,
    )
    sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


def _evaluate_stages(arguments: argparse.Namespace) -> int:
    from lancer.evaluation.command import evaluate_stages_command

    others = ("run", "per_query", "baseline", "test", "correction", "ratings", "ratings_run", "plot", "without_vital")
    if given := [name for name in others if getattr(arguments, name)]:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"--stages are evaluated by themselves, without {names}")
    text = evaluate_stages_command(
        arguments.stages,
        arguments.qrels,
        arguments.measures or "",
        kept=arguments.kept,
        rel=arguments.rel,
        output=arguments.output,
    )
    sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


def _evaluate_nuggets(arguments: argparse.Namespace) -> int:
    from lancer.evaluation.command import evaluate_nuggets_command

    of_runs = [n for n in ("run", "stages", "qrels", "ratings", "ratings_run", "plot") if getattr(arguments, n)]
    if of_runs:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in of_runs)
        raise UsageError(f"--assignments are evaluated by themselves, without {names}")
    text = evaluate_nuggets_command(
        arguments.assignments,
        per_query=arguments.per_query,
        output=arguments.output,
        baseline=arguments.baseline,
        test=arguments.test,
        correction=arguments.correction,
        without_vital=arguments.without_vital or "zero",
    )
    sys.stdout.write(text.rstrip("\n") + "\n")
    return 0


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
