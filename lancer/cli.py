"""The `lancer` command: thin, every subcommand calls one function of the library. Exit codes: `lancer.errors`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import lancer
from lancer.errors import LancerError

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; returns the exit code."""
    arguments = _parser().parse_args(argv)
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
    run.add_argument("--dry-run", action="store_true", help="show the plan and stop")
    run.set_defaults(mode="resume")

    plan = _command(commands, "plan", "show stages, columns, engines and the hardware they need", _plan)
    _config_arguments(plan)

    validate = _command(commands, "validate", "check a config and its inputs without loading a model", _validate)
    _config_arguments(validate)

    doctor = _command(commands, "doctor", "check this machine: Python, Java, vLLM, GPU, Ray, models, storage", _doctor)
    doctor.add_argument("--storage", metavar="URI", help="also try to write and read below this folder or s3:// prefix")
    doctor.add_argument("--endpoint", metavar="URL", help="of that object store (default: the AWS settings)")
    _output_argument(doctor)

    select = _command(commands, "select", "rankings from a stored coverage matrix, without any engine", _select)
    select.add_argument("--matrix", required=True, metavar="PATH", help="a run folder, coverage.parquet, rating file")
    select.add_argument("--selector", action="append", required=True, metavar="SPEC", help="repeatable")
    select.add_argument("--output", required=True, metavar="PATH", help="a run file; a folder for several selectors")
    select.add_argument("--run", metavar="RUN", help="the candidates in first-stage order; positional files need it")
    select.add_argument("--second-order", metavar="RUN", help="for ties=second and rest=second")
    select.add_argument("--token-counts", metavar="FILE", help="doc_id<TAB>count lines, for budget")
    select.add_argument("--explain", metavar="FILE", help="JSON Lines: what each document newly covers")

    evaluate = _command(commands, "evaluate", "score runs against judgments", _evaluate)
    evaluate.add_argument("--run", nargs="+", required=True, metavar="RUN", help="run files or run folders")
    evaluate.add_argument("--qrels", nargs="+", default=[], metavar="FILE", help="optional when --ratings is given")
    evaluate.add_argument("--measures", default="alpha_nDCG@10 StRecall@10 nDCG@10", metavar="NAMES")
    evaluate.add_argument("--per-query", action="store_true")
    evaluate.add_argument("--output", default="table", choices=("table", "json", "csv", "latex"))
    evaluate.add_argument("--baseline", metavar="RUN", help="compare the others with this run")
    evaluate.add_argument("--test", choices=("randomisation", "t"))
    evaluate.add_argument("--correction", choices=("holm", "bh"))
    evaluate.add_argument("--ties", default="lancer", choices=("lancer", "trec_eval", "pyndeval"))
    evaluate.add_argument("--ratings", metavar="FILE", help="the rating matrix that Cov is computed from")
    evaluate.add_argument("--ratings-run", metavar="RUN", help="the run that a positional rating file belongs to")
    evaluate.add_argument("--plot", metavar="FILE", help="coverage@k of each run, .png or .svg")
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


def _output_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", dest="form", default="text", choices=("text", "json"), help="how to print")


def _run(arguments: argparse.Namespace) -> int:
    from lancer.config import load_config
    from lancer.pipeline.distributed.runner import run
    from lancer.pipeline.summary import show

    if arguments.dry_run:
        return _plan(arguments)
    config = load_config(arguments.config, arguments.overrides)
    result = run(config, mode=arguments.mode, say=_say)
    if arguments.form == "json":
        _print_json(result.as_dict())
    else:
        show(result)
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from lancer.pipeline.describe import describe, plan_run
    from lancer.pipeline.summary import wide_console

    plan = plan_run(arguments.config, arguments.overrides)
    if arguments.form == "json":
        _print_json(describe(plan).as_dict())
    else:
        wide_console().print(describe(plan).render())
    return 0


def _validate(arguments: argparse.Namespace) -> int:
    from lancer.pipeline.describe import plan_run

    plan = plan_run(arguments.config, arguments.overrides)
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


def _evaluate(arguments: argparse.Namespace) -> int:
    from lancer.evaluation.command import evaluate_command

    text = evaluate_command(
        runs=arguments.run,
        qrels=arguments.qrels,
        measures=arguments.measures,
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


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _print_json(value: object) -> None:
    sys.stdout.write(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
