"""The stages of a funnel as text: a table for a terminal, JSON, CSV, LaTeX, like those of runs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from lancer.errors import UsageError, nearest
from lancer.evaluation.stages import PRECISION, Lift, StageValues
from lancer.evaluation.tables import LATEX, aligned

EQUAL_DEPTH: Final = "precision at equal depth"


def render_stages(stages: Sequence[StageValues], output: str = "table") -> str:
    """`output`: table, json, csv or latex. UsageError: another one."""
    if output not in STAGE_OUTPUTS:
        raise UsageError(f"output {output!r} does not exist{nearest(output, STAGE_OUTPUTS)}")
    return STAGE_OUTPUTS[output](stages)


def _table(stages: Sequence[StageValues]) -> str:
    names = list(stages[0].means)
    values = [["stage", "documents", *names]]
    values += [[s.name, f"{s.documents:.1f}", *(f"{s.means[n]:.4f}" for n in names)] for s in stages]
    lifts = [["lift over the stage before, the first", *(_lifted(names))]]
    lifts += [[s.name, *(_both(lift) for lift in _lifts(s).values())] for s in stages[1:]]
    blocks = [aligned(values, left=1), *([aligned(lifts, left=1)] if len(stages) > 1 else [])]
    return "\n\n".join([*blocks, "\n".join(_remarks(stages))]) + "\n"


def _lifted(names: Sequence[str]) -> list[str]:
    """The measures, and beside precision the one at equal depth."""
    return [lifted for name in names for lifted in ([name, EQUAL_DEPTH] if name == PRECISION else [name])]


def _lifts(stage: StageValues) -> dict[str, Lift]:
    own = {**stage.lifts, EQUAL_DEPTH: stage.equal_depth}
    return {name: own[name] for name in _lifted(list(stage.lifts))}


def _both(lift: Lift) -> str:
    return f"{_factor(lift.before)}, {_factor(lift.first)}"


def _factor(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _remarks(stages: Sequence[StageValues]) -> Iterator[str]:
    yield "Of the documents that go on after each stage; means over the queries of the judgments."
    if len(stages) > 1:
        yield "Equal depth: beside the earlier order, cut to as many documents."
    shared = set.intersection(*(set(stage.notes) for stage in stages))
    for note in dict.fromkeys(note for stage in stages for note in stage.notes if note in shared):
        yield f"Note: {note}."
    for stage in stages:
        for note in stage.notes:
            if note not in shared:
                yield f"Note on {stage.name}: {note}."


def _json(stages: Sequence[StageValues]) -> str:
    found = [
        {
            "stage": s.name,
            "documents": s.documents,
            "measures": {
                name: {
                    "mean": mean,
                    "interval": list(s.intervals[name]),
                    "lift_before": s.lifts[name].before,
                    "lift_first": s.lifts[name].first,
                }
                for name, mean in s.means.items()
            },
            "equal_depth": {"lift_before": s.equal_depth.before, "lift_first": s.equal_depth.first},
            "notes": s.notes,
        }
        for s in stages
    ]
    return json.dumps({"stages": found}, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _csv(stages: Sequence[StageValues]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["stage", "documents", "measure", "mean", "low", "high", "lift_before", "lift_first"]
    writer.writerow([*head, "equal_depth_before", "equal_depth_first"])
    for s in stages:
        for name, mean in s.means.items():
            depth = [s.equal_depth.before, s.equal_depth.first] if name == PRECISION else [None, None]
            lift = s.lifts[name]
            writer.writerow([s.name, s.documents, name, mean, *s.intervals[name], lift.before, lift.first, *depth])
    return text.getvalue()


def _latex(stages: Sequence[StageValues]) -> str:
    """With booktabs; beside every value its lift over the stage before and over the first."""
    names = list(stages[0].means)
    lines = [f"% {line}" for line in ("Needs \\usepackage{booktabs}.", *_remarks(stages))]
    lines += [f"\\begin{{tabular}}{{lr{'rrr' * len(names)}}}", "\\toprule"]
    heads = ["stage", "documents"]
    for name in names:
        heads += [name.translate(LATEX), "before", "first"]
    lines += [" & ".join(heads) + " \\\\", "\\midrule"]
    for s in stages:
        cells = [s.name.translate(LATEX), f"{s.documents:.1f}"]
        for name in names:
            cells += [f"{s.means[name]:.4f}", *(_factor(v) for v in (s.lifts[name].before, s.lifts[name].first))]
        lines.append(" & ".join(cells) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


STAGE_OUTPUTS: Final[dict[str, Callable[[Sequence[StageValues]], str]]] = {
    "table": _table,
    "json": _json,
    "csv": _csv,
    "latex": _latex,
}
