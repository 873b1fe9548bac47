"""Results as text: an aligned table for a terminal, JSON, CSV, LaTeX. No colours: NO_COLOR has nothing to do."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from rich.cells import cell_len

from lancer.errors import UsageError, nearest
from lancer.evaluation.results import Results
from lancer.evaluation.significance import LEVEL

LATEX: Final = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
)


def render(results: Results, output: str = "table", *, per_query: bool = False) -> str:
    """`output`: table, json, csv or latex. `per_query`: table and JSON add a value per query, CSV and LaTeX hold these
    instead of the means. UsageError: another output."""
    if output not in OUTPUTS:
        raise UsageError(f"output {output!r} does not exist{nearest(output, OUTPUTS)}")
    return OUTPUTS[output](results, per_query)


def _table(results: Results, per_query: bool) -> str:
    judged = ["judged"] if _has_judged(results) else []
    compared = ["difference", "p", "corrected p"] if results.comparisons else []
    header = ["measure", "run", "mean", "95% interval", *judged, *compared]
    blocks = [aligned([header, *_mean_rows(results)], left=2)]
    if per_query:
        blocks.append(aligned([["query_id", "run", *results.measures], *_query_rows(results)], left=2))
    return "\n\n".join([*blocks, "\n".join(_remarks(results, mark="*"))]) + "\n"


def _has_judged(results: Results) -> bool:
    """Measures of answers have no judged documents beside them."""
    return any(evaluation.judged for evaluation in results.evaluations.values())


def _mean_rows(results: Results) -> Iterator[list[str]]:
    for measure in results.measures:
        for name, evaluation in results.evaluations.items():
            low, high = results.intervals[measure][name]
            row = [measure, name, f"{evaluation.mean[measure]:.4f}", f"{low:.4f} to {high:.4f}"]
            if _has_judged(results):
                row.append(_judged(results, name, measure))
            comparison = results.comparisons.get(measure, {}).get(name)
            if comparison is not None:
                row += [_signed(comparison.difference), _p(comparison.p)]
                row.append(_p(comparison.p_corrected) + (" *" if comparison.significant else "  "))
            elif results.comparisons:
                row += ["baseline", "", ""]
            yield row


def _query_rows(results: Results) -> Iterator[list[str]]:
    for query_id in results.queries:
        for name, evaluation in results.evaluations.items():
            row = [query_id, name]
            for measure, values in evaluation.per_query.items():
                comparison = results.comparisons.get(measure, {}).get(name)
                text = f"{values[query_id]:.4f}" if query_id in values else "-"
                if comparison is not None and query_id in comparison.by_query:
                    text += f" ({_signed(comparison.by_query[query_id])})"
                row.append(text)
            yield row


def _signed(difference: float) -> str:
    """With its sign; what rounds to 0 has a plus."""
    return f"{round(difference, 4) + 0.0:+.4f}"


def _p(value: float) -> str:
    return f"{value:.4f}" if value >= 0.0001 else "<0.0001"


def _judged(results: Results, name: str, measure: str) -> str:
    evaluation = results.evaluations[name]
    share = evaluation.judged_for(measure)
    if share is None:
        return "-"
    _, at, cutoff = evaluation.judged_by[measure].partition("@")
    return f"{share:.4f}{at}{cutoff}"


def _remarks(results: Results, *, mark: str) -> Iterator[str]:
    """How to read the figures, and every note; one that all runs share is said once."""
    sizes = {len(row) for evaluation in results.evaluations.values() for row in evaluation.per_query.values()}
    queries = str(max(sizes)) if len(sizes) == 1 else f"{min(sizes)} to {max(sizes)}"
    yield f"Means over {queries} queries; bootstrap intervals over queries."
    labels = {label for evaluation in results.evaluations.values() for label in evaluation.judged}
    if labels:
        ratings = "; beside Cov, that has a rating" if any(label.startswith("rated") for label in labels) else ""
        yield f"Judged: share of the top k that has a judgment{ratings}."
    if results.comparisons:
        test = "randomisation test" if results.test == "randomisation" else "t-test"
        correction = {"holm": "Holm", "bh": "Benjamini-Hochberg"}[results.correction]
        yield (
            f"p: paired two-sided {test} against {results.baseline}; corrected by {correction} within a measure "
            f"(compared runs: {len(results.evaluations) - 1}); {mark} corrected p below {LEVEL}."
        )
    notes = {name: evaluation.notes for name, evaluation in results.evaluations.items()}
    shared = set.intersection(*(set(lines) for lines in notes.values()))
    for note in dict.fromkeys(note for lines in notes.values() for note in lines if note in shared):
        yield f"Note: {note}."
    for name, lines in notes.items():
        for note in lines:
            if note not in shared:
                yield f"Note on {name}: {note}."


def aligned(rows: Iterable[Sequence[str]], *, left: int) -> str:
    """Columns two blanks apart; the first `left` flush left, the others flush right."""
    rows = list(rows)
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = []
        for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
            blanks = " " * (width - cell_len(cell))
            cells.append(cell + blanks if place < left else blanks + cell)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _json(results: Results, per_query: bool) -> str:
    runs = {}
    for name, evaluation in results.evaluations.items():
        measures = {}
        for measure, mean in evaluation.mean.items():
            entry: dict[str, object] = {
                "mean": mean,
                "interval": list(results.intervals[measure][name]),
                "queries": len(evaluation.per_query[measure]),
                "judged": evaluation.judged_for(measure),
            }
            comparison = results.comparisons.get(measure, {}).get(name)
            if comparison is not None:
                entry["difference"] = comparison.difference
                entry["p"], entry["p_corrected"] = comparison.p, comparison.p_corrected
                entry["significant"] = comparison.significant
                entry["better"], entry["worse"] = comparison.better, comparison.worse
            if per_query:
                entry["per_query"] = evaluation.per_query[measure]
                entry |= {} if comparison is None else {"differences": comparison.by_query}
            measures[measure] = entry
        runs[name] = {
            "measures": measures,
            "queries_missing": evaluation.queries_missing,
            "queries_ignored": evaluation.queries_ignored,
            "notes": evaluation.notes,
        }
    compared = {"baseline": results.baseline, "test": results.test, "correction": results.correction}
    value = {"runs": runs, "comparison": compared if results.comparisons else None}
    return json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False) + "\n"


def _csv(results: Results, per_query: bool) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if per_query:
        writer.writerow(["run", "measure", "query_id", "value", "difference"])
    else:
        head = ["run", "measure", "queries", "mean", "low", "high", "judged"]
        writer.writerow([*head, "difference", "p", "p_corrected", "significant"])
    for name, evaluation in results.evaluations.items():
        for measure, values in evaluation.per_query.items():
            comparison = results.comparisons.get(measure, {}).get(name)
            if per_query:
                differences = {} if comparison is None else comparison.by_query
                writer.writerows([name, measure, q, value, differences.get(q)] for q, value in values.items())
                continue
            row: list[object] = [name, measure, len(values), evaluation.mean[measure]]
            row += [*results.intervals[measure][name], evaluation.judged_for(measure)]
            if comparison is None:
                writer.writerow([*row, None, None, None, None])
            else:
                c = comparison
                writer.writerow([*row, c.difference, c.p, c.p_corrected, str(c.significant).lower()])
    return text.getvalue()


def _latex(results: Results, per_query: bool) -> str:
    """With booktabs; one row per run as papers have it, a dagger on what differs significantly from the baseline."""
    if per_query:
        texts, header = 2, ["query_id", "run", *results.measures]
        rows = [[_minus(cell.translate(LATEX)) for cell in row] for row in _query_rows(results)]
    else:
        judged = list(dict.fromkeys(label for e in results.evaluations.values() for label in e.judged))
        texts, header, rows = 1, ["run", *results.measures, *judged], []
        for name, evaluation in results.evaluations.items():
            row = [name.translate(LATEX)]
            for measure, mean in evaluation.mean.items():
                comparison = results.comparisons.get(measure, {}).get(name)
                dagger = "$^{\\dagger}$" if comparison is not None and comparison.significant else ""
                row.append(f"{mean:.4f}{dagger}")
            rows.append([*row, *(f"{evaluation.judged[label]:.4f}" for label in judged)])
    lines = [f"% {line}" for line in ("Needs \\usepackage{booktabs}.", *_remarks(results, mark="dagger:"))]
    lines += [f"\\begin{{tabular}}{{{'l' * texts}{'r' * (len(header) - texts)}}}", "\\toprule"]
    lines += [" & ".join(name.translate(LATEX) for name in header) + " \\\\", "\\midrule"]
    lines += [" & ".join(row) + " \\\\" for row in rows]
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _minus(cell: str) -> str:
    """A difference below 0 with a minus sign, which is no hyphen."""
    return cell.replace("(-", "($-$")


OUTPUTS: Final[dict[str, Callable[[Results, bool], str]]] = {
    "table": _table,
    "json": _json,
    "csv": _csv,
    "latex": _latex,
}
