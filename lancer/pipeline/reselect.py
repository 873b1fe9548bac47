"""`lancer select`: rankings from a stored matrix, in seconds, without Ray, GPU or Java."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lancer.errors import InputError, OutputError, UsageError
from lancer.formats.coverage import FIRST_STAGE, StoredMatrix
from lancer.formats.lines import read_lines
from lancer.formats.runs import read_run, write_run
from lancer.pipeline.matrices import coverage_matrix, read_matrices
from lancer.schema import Scale
from lancer.selection import CoverageMatrix, Selection, Selector, parse_selector
from lancer.selection.reranked import select_reranked
from lancer.storage import Storage, is_remote, join

RESULT: Final = "run.trec"
COUNT_DIGITS: Final = 18  # fits into 64 bits


@dataclass
class Reselection:
    """`files`: selector → run file; `missing`: cells without a value, counted 0, over all matrices."""

    files: dict[str, str] = field(default_factory=dict)
    queries: int = 0
    missing: int = 0
    notes: list[str] = field(default_factory=list)


def reselect(
    matrix: str,
    selectors: Sequence[str],
    output: str,
    *,
    run: str | None = None,
    second_order: str | None = None,
    token_counts: str | None = None,
    explain: str | None = None,
    storage: Storage | None = None,
) -> Reselection:
    """Writes one run per selector: to the file `output`, or, for several selectors, into the folder `output`.

    Where the run that made the matrix reranked, its order breaks ties, is the second order if no other is given, and
    what it did not keep stays behind.

    `run`: the candidates and their first-stage order, instead of what the run left. `second_order`: a run by another
    ranker, for `ties=second` and `rest=second`. `token_counts`: `doc_id<TAB>count` lines, for `budget`. `explain`: a
    JSON Lines file that says per query and selector which document newly covers what, and what stays uncovered.
    UsageError, PlanError, InputError, OutputError before anything is written.
    """
    storage = storage or Storage()
    parsed = [parse_selector(spec) for spec in selectors]
    if len({repr(s) for s in parsed}) < len(parsed):
        raise UsageError("a selector is given twice")
    _check_targets([explain] if explain else [], output, len(parsed) > 1, storage)
    first = read_run(run, storage) if run else None
    second = read_run(second_order, storage).rankings if second_order else None
    counts = _read_counts(token_counts, storage) if token_counts else None
    result = Reselection()
    if first is not None:
        result.notes.extend(f"{run}: {note}" for note in first.notes)
    rankings: dict[str, list[tuple[str, list[str]]]] = {repr(s): [] for s in parsed}
    reasons: list[str] = []
    scales: set[Scale] = set()
    idle = dict.fromkeys(rankings)  # a rating tau on probabilities
    for stored in read_matrices(matrix, storage, first, result.notes):
        order = None if second is None else [d for d, _ in second.get(stored.query_id, [])]
        values = coverage_matrix(stored, second_order=order, token_counts=counts)
        result.queries += 1
        scales.add(stored.scale)
        result.missing += values.missing - len(stored.behind) * values.sub_questions
        for selector in parsed:
            selection = _select(selector, values, stored)
            if any(selection.covers):
                idle.pop(repr(selector), None)
            rankings[repr(selector)].append((stored.query_id, [stored.doc_ids[i] for i in selection.order]))
            if explain:
                reasons.append(_reason(stored, selector, selection.order, selection.covers, selection.uncovered))
    result.notes.extend(f"{spec} covers no sub-question of any query" for spec in idle)
    if first is None:
        result.notes.extend(_unfinished(matrix, result.queries, storage))
    tag = first.tag if first else _tag(matrix, scales, storage)
    for spec, ranked in rankings.items():
        path = output if len(parsed) == 1 else join(output, f"{spec}.trec")
        write_run(path, ranked, f"{tag}:{spec}", storage)
        result.files[spec] = path
    if explain:
        storage.write(explain, "".join(reasons).encode())
    return result


def _select(selector: Selector, values: CoverageMatrix, stored: StoredMatrix) -> Selection:
    """As the run itself selects: by the order that its reranking left, if there was one."""
    if stored.order is None:
        return selector.select(values)
    place = {doc_id: i for i, doc_id in enumerate(stored.doc_ids)}
    return select_reranked(selector, values, [place[d] for d in stored.order], stored.kept)


def _reason(
    stored: StoredMatrix, selector: Selector, order: list[int], covers: list[list[int]], uncovered: list[int]
) -> str:
    ids = stored.sub_question_ids
    chosen = [
        {"doc_id": stored.doc_ids[i], "rank": rank, "covers": [ids[j] for j in new]}
        for rank, (i, new) in enumerate(zip(order, covers, strict=True), start=1)
        if new
    ]
    record = {
        "query_id": stored.query_id,
        "selector": repr(selector),
        "chosen": chosen,
        "uncovered": [ids[j] for j in uncovered],
    }
    return json.dumps(record, ensure_ascii=False) + "\n"


def _tag(matrix: str, scales: set[Scale], storage: Storage) -> str:
    """What was done before selection, as the run that made the matrix names its own files: `bm25:estimate:judge`."""
    uri = join(matrix, FIRST_STAGE)
    if not storage.exists(uri):
        return "matrix"
    by_scale = "estimate" if Scale.probability in scales else "judge"
    steps = ":".join([s for s in _stages(matrix, storage) if s in ("judge", "estimate")] or [by_scale])
    result = join(matrix, RESULT)
    if storage.exists(result):  # with the steps of reranking
        before = _last(result, storage).rpartition(":")[0]
        if before.endswith(steps):
            return before
    return f"{_last(uri, storage)}:{steps}"


def _last(uri: str, storage: Storage) -> str:
    """The tag of a run file."""
    _, line = next(read_lines(uri, storage))
    return line.split()[-1]


def _stages(matrix: str, storage: Storage) -> list[str]:
    """Names, by the run folder's run.json; none where it cannot be read."""
    try:
        return [stage["name"] for stage in json.loads(storage.read(join(matrix, "run.json")))["stages"]]
    except (InputError, ValueError, KeyError, TypeError):
        return []


def _check_targets(files: list[str], output: str, is_folder: bool, storage: Storage) -> None:
    """OutputError when one of the files, or the output, could not be written in the end."""
    if is_folder:
        storage.check_writable(output)
    else:
        files = [*files, output]
    for file in files:
        if not is_remote(file) and Path(file).is_dir():
            raise OutputError(f"cannot write to {file}: it is a folder, and a file is needed")
        storage.check_writable(file.rpartition("/")[0] or ("/" if file.startswith("/") else "."))


def _unfinished(matrix: str, queries: int, storage: Storage) -> list[str]:
    """A note when a run folder has fewer queries than the run."""
    uri = join(matrix, "run.json")
    if not storage.exists(uri):
        return []
    try:
        record = json.loads(storage.read(uri))
    except ValueError:
        return [f"{uri} cannot be read: whether the run is finished is not known"]
    wanted = record.get("queries") if isinstance(record, dict) else None
    if not isinstance(wanted, int) or queries >= wanted:
        return []
    return [f"{matrix} has {queries} of the run's {wanted} queries: the others are unfinished or without candidates"]


def _read_counts(path: str, storage: Storage) -> dict[str, int]:
    counts: dict[str, int] = {}
    for number, line in read_lines(path, storage):
        doc_id, tab, text = line.partition("\t")
        text = text.strip()
        if not tab or not (text.isascii() and text.isdecimal() and len(text) <= COUNT_DIGITS):
            raise InputError(f"found {line!r}; doc_id<TAB>count is expected", file=path, line=number)
        if counts.setdefault(doc_id, int(text)) != int(text):
            raise InputError(f"document {doc_id!r} has another count on an earlier line", file=path, line=number)
    return counts
