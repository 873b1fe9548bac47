"""The stages of a funnel, read: from run files in order, or from what a run folder says of its own stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lancer.errors import UsageError
from lancer.evaluation.run_stages import of_run
from lancer.evaluation.stages import Step
from lancer.formats.runs import read_run
from lancer.storage import Storage


def read_steps(paths: Sequence[str], kept: Sequence[int] = (), storage: Storage | None = None) -> list[Step]:
    """One run folder, whose record names its stages, or run files, one per stage, in their order.

    `kept`: how many documents of each query go on after each stage; without it all that its ranking has, or as many as
    the run itself passed on. UsageError: another number of them than stages, a file given twice. InputError: a file or
    folder that cannot be read.
    """
    storage = storage or Storage()
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise UsageError(f"the run {twice} is given twice")
    folders = [path for path in paths if not storage.exists(path)]
    if folders and len(paths) > 1:
        raise UsageError(f"the stages are those of one run folder, or run files in order; {folders[0]} is no file")
    steps = of_run(folders[0], storage) if folders else [_of_file(path, storage) for path in paths]
    tags = [step.name for step in steps]
    if len(set(tags)) < len(tags):
        steps = [replace(step, name=path) for path, step in zip(paths, steps, strict=True)]
    if not kept:
        return steps
    if len(kept) != len(steps) or min(kept) < 1:
        names = ", ".join(step.name for step in steps)
        raise UsageError(f"kept needs a number of at least 1 for each of the {len(steps)} stages ({names})")
    return [Step.cut(s.name, s.orders, number, s.notes) for s, number in zip(steps, kept, strict=True)]


def _of_file(path: str, storage: Storage) -> Step:
    run = read_run(path, storage)
    orders = {query_id: [doc_id for doc_id, _ in ranking] for query_id, ranking in run.rankings.items()}
    return Step(name=run.tag, orders=orders, notes=tuple(run.notes))
