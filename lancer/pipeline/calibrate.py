"""`lancer calibrate`: a run's matrix and graded labels → a map of its values and a threshold, on development queries.

What is fitted is fitted on the development queries alone; every figure says which queries it is of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, Final, Literal

import numpy as np
from ir_measures import Measure

import lancer
from lancer.errors import InputError, UsageError
from lancer.evaluation.calibration import (
    Figures,
    Floats,
    apply_knots,
    best_threshold,
    f1,
    figures,
    fit_isotonic,
    in_share,
)
from lancer.evaluation.calibration_file import Calibration, Provenance, Threshold, made_for, write_calibration
from lancer.evaluation.judgments import Judgments
from lancer.evaluation.measures import evaluate, parse_measures
from lancer.formats.coverage import TABLE, StoredMatrix, read_stored_matrices
from lancer.formats.lines import read_lines
from lancer.formats.qrels import Qrel, read_qrels
from lancer.schema import RATING_SCALE, Scale
from lancer.selection import CoverageMatrix, Selector, parse_selector
from lancer.storage import Storage, join

F1: Final = "F1"
Target = Literal["probability", "grade"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """Figures of some queries: `queries` is development (fitted on these) or others; `values` before or after."""

    queries: str
    count: int
    values: str
    figures: Figures
    measure: float | None  # at the threshold; after only


@dataclass(frozen=True)
class Calibrated:
    """What was written to `path`, and how it fits."""

    path: str
    calibration: Calibration
    lines: list[Line]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        lines = [asdict(line) for line in self.lines]
        return {
            "path": self.path,
            "scale": str(self.calibration.scale),
            "target": self.calibration.target,
            "threshold": self.calibration.threshold and self.calibration.threshold.model_dump(),
            "lines": lines,
            "notes": self.notes,
        }


@dataclass(frozen=True)
class _Cells:
    """The cells of a matrix that have a value and a grade; arrays of shape (cells,)."""

    values: Floats
    grades: Floats
    queries: list[str]

    def of(self, queries: Iterable[str]) -> _Cells:
        wanted = set(queries)
        mask = np.array([q in wanted for q in self.queries], dtype=np.bool_)
        return _Cells(self.values[mask], self.grades[mask], [q for q in self.queries if q in wanted])


def calibrate(
    matrix: str,
    qrels: str,
    output: str,
    *,
    rel: int = 4,
    target: Target = "probability",
    queries: str | None = None,
    share: float | None = None,
    selector: str | None = None,
    measure: str | None = None,
    storage: Storage | None = None,
) -> Calibrated:
    """Writes a calibration to `output`.

    matrix: a run folder or its coverage table. qrels: grades per sub-question, whose ids are the sub-topics.
    target: the probability of a grade of at least `rel`, or the grade itself, which makes ratings.
    queries: a file with the ids of the development queries, one per line; share: those by hash, instead.
    selector, measure: the threshold is the tau with which the selector's rankings of the development queries have the
    highest measure (default: alpha_nDCG(rel=...)@10); without a selector that of the cells with the highest F1.
    UsageError, InputError: before anything is written.
    """
    storage = storage or Storage()
    if (queries is None) == (share is None):
        raise UsageError("name the development queries: a file of their ids, or a share of all by hash")
    chosen, asked = _threshold_by(selector, measure, rel)
    matrices = list(read_stored_matrices(matrix, None, storage))
    judgments = read_qrels(qrels, storage)
    notes: list[str] = []
    cells = _cells(matrices, Judgments(judgments), matrix, notes)
    development = _development(sorted(set(cells.queries)), queries, share, storage, notes)
    from_scale = _scale(matrices)
    scale = Scale.probability if target == "probability" else Scale.rating
    fit = cells.of(development)
    positive = fit.grades >= rel
    targets = _targets(fit, rel, target)
    if target == "grade" and cells.grades.max() > RATING_SCALE[1]:
        raise InputError(f"has a grade of {cells.grades.max():g}, a rating is at most {RATING_SCALE[1]}", file=qrels)
    if len(np.unique(targets)) < 2:
        what = f"grade >= {rel}: {bool(positive.all())}" if target == "probability" else f"grade {targets[0]:g}"
        raise InputError(f"all {len(targets)} cells of the development queries are alike ({what})", file=qrels)
    calibration = Calibration(
        target=f"grade >= {rel}" if target == "probability" else "grade",
        scale=scale,
        from_scale=from_scale,
        knots=tuple(fit_isotonic(fit.values, targets)),
        made_for=_made_for(matrix, storage, notes),
        provenance=Provenance(
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            versions={"lancer": lancer.__version__} | {p: metadata.version(p) for p in ("numpy", "scipy")},
            matrix=matrix,
            matrix_digest=_digest([[m.query_id, m.doc_ids, m.sub_question_ids, m.values] for m in matrices]),
            qrels=qrels,
            qrels_digest=_digest(judgments),
            queries=tuple(development),
            cells=len(fit.values),
            positives=int(positive.sum()),
        ),
    )
    by = _Measured(matrices, judgments, calibration, chosen, asked, rel)
    tau, value = best_threshold(lambda tau: by.value(tau, development, fit), scale.maximum)
    shown = None if chosen is None else repr(_with_tau(chosen, tau))
    threshold = Threshold(tau=tau, selector=shown, measure=str(asked or F1), value=value)
    calibration = calibration.model_copy(update={"threshold": threshold})
    lines = []
    others = sorted(set(cells.queries) - set(development))
    for name, ids in (("development (fitted on these)", development), ("others", others)):
        if ids:
            lines.extend(_lines(name, ids, cells.of(ids), calibration, by, rel, target))
    if not others:
        notes.append("no query is left to judge the calibration by: all figures are of those it was fitted on")
    write_calibration(calibration, output, storage)
    return Calibrated(output, calibration, lines, notes)


@dataclass(frozen=True)
class _Measured:
    """What a threshold is worth."""

    matrices: Sequence[StoredMatrix]
    judgments: Sequence[Qrel]
    calibration: Calibration
    selector: Selector | None
    measure: Measure | None
    rel: int

    def value(self, tau: float, queries: Sequence[str], cells: _Cells) -> float:
        """On these queries, whose cells these are."""
        if self.selector is None or self.measure is None:
            covered = self.calibration.apply(cells.values).astype(np.float32) >= np.float32(tau)
            return f1(covered, cells.grades >= self.rel)
        selector, wanted = _with_tau(self.selector, tau), set(queries)
        rankings = {
            m.query_id: [m.doc_ids[i] for i in selector.select(self._calibrated(m)).order]
            for m in self.matrices
            if m.query_id in wanted
        }
        judged = [judgment for judgment in self.judgments if judgment.query_id in wanted]
        return evaluate(rankings, judged, [self.measure]).mean[str(self.measure)]

    def _calibrated(self, matrix: StoredMatrix) -> CoverageMatrix:
        values = np.array([[np.nan if v is None else v for v in row] for row in matrix.values], dtype=np.float64)
        shape = (len(matrix.doc_ids), len(matrix.sub_question_ids))
        return CoverageMatrix(self.calibration.apply(values.reshape(shape)), self.calibration.scale)


def _lines(
    name: str,
    ids: Sequence[str],
    cells: _Cells,
    calibration: Calibration,
    by: _Measured,
    rel: int,
    target: Target,
) -> list[Line]:
    assert calibration.threshold is not None
    positive, targets = cells.grades >= rel, _targets(cells, rel, target)
    before = cells.values / calibration.from_scale.maximum * calibration.scale.maximum
    at = by.value(calibration.threshold.tau, ids, cells)
    return [
        Line(queries=name, count=len(ids), values=values, figures=figures(v, targets, positive), measure=m)
        for values, v, m in (("before", before, None), ("after", apply_knots(calibration.knots, cells.values), at))
    ]


def _targets(cells: _Cells, rel: int, target: Target) -> Floats:
    return (cells.grades >= rel).astype(np.float64) if target == "probability" else cells.grades


def _threshold_by(spec: str | None, measure: str | None, rel: int) -> tuple[Selector | None, Measure | None]:
    if spec is None:
        if measure not in (None, F1):
            raise UsageError(f"measure {measure!r} is one of rankings: name the selector that makes them")
        return None, None
    selector = parse_selector(spec)
    if not hasattr(selector, "tau"):
        raise UsageError(f"selector {selector!r} has no tau to find")
    if selector.needs:
        raise UsageError(f"selector {selector!r} needs {', '.join(selector.needs)}, which a run's matrix has not")
    asked = parse_measures(measure or f"alpha_nDCG(rel={rel})@10")
    if len(asked) > 1:
        raise UsageError(f"the threshold is the best by one measure, not by {len(asked)}")
    return selector, asked[0]


def _with_tau(selector: Selector, tau: float) -> Selector:
    return replace(selector, tau=tau)  # type: ignore[call-arg]


def _cells(matrices: Sequence[StoredMatrix], judgments: Judgments, path: str, notes: list[str]) -> _Cells:
    values: list[float] = []
    grades: list[int] = []
    queries: list[str] = []
    missing = unjudged = 0
    for matrix in matrices:
        known: Mapping[str, Mapping[str, int]] = judgments.sub_topics.get(matrix.query_id, {})
        for doc_id, row in zip(matrix.doc_ids, matrix.values, strict=True):
            for name, value in zip(matrix.sub_question_ids, row, strict=True):
                grade = known.get(name, {}).get(doc_id)
                missing += value is None
                unjudged += value is not None and grade is None
                if value is not None and grade is not None:
                    values.append(value)
                    grades.append(grade)
                    queries.append(matrix.query_id)
    if not values:
        example = next((name for m in matrices for name in m.sub_question_ids), "none")
        there = next((name for rows in judgments.sub_topics.values() for name in rows), "none")
        reason = (
            f"no cell has both a value and a grade: sub-question {example!r} here, sub-topic {there!r} in the qrels"
        )
        raise InputError(reason, file=path)
    for what, count in (("without a value", missing), ("without a grade", unjudged)):
        if count:
            notes.append(f"cells {what}, left out: {count}")
    return _Cells(np.array(values), np.array(grades, dtype=np.float64), queries)


def _development(
    there: Sequence[str], file: str | None, share: float | None, storage: Storage, notes: list[str]
) -> list[str]:
    if file is None:
        assert share is not None
        if not 0 < share <= 1:
            raise UsageError(f"found a share of {share:g}; allowed: above 0, at most 1")
        found = [q for q in there if in_share(q, share)]
        if not found:
            raise UsageError(f"a share of {share:g} has none of the {len(there)} queries; name a larger one, or a file")
        return found
    named = list(dict.fromkeys(line.split("\t")[0].strip() for _, line in read_lines(file, storage)))
    found = [q for q in named if q in set(there)]
    if not found:
        raise InputError(f"has no query of the matrix; e.g. {there[0]!r} is in the matrix", file=file)
    if len(found) < len(named):
        notes.append(f"{file}: {len(named) - len(found)} queries are not in the matrix, or have no grades")
    return sorted(found)


def _scale(matrices: Sequence[StoredMatrix]) -> Scale:
    scales = {m.scale for m in matrices if any(v is not None for row in m.values for v in row)}
    if len(scales) > 1:
        raise InputError("the matrices hold ratings and probabilities, which have no scale in common")
    return scales.pop()


def _made_for(matrix: str, storage: Storage, notes: list[str]) -> dict[str, Any] | None:
    """By the run.json of the folder that the matrix is, or lies in. InputError: its values are calibrated already."""
    folder = matrix.rstrip("/").removesuffix(TABLE) if matrix.rstrip("/").endswith(TABLE) else matrix
    uri = join(folder, "run.json")
    if not storage.exists(uri):
        notes.append("no run.json beside the matrix: what it was made by is not known, and no run can use the map")
        return None
    try:
        stages = {s["name"]: s["identity"] for s in json.loads(storage.read(uri))["stages"]}
        identity = next(stages[name] for name in ("judge", "estimate") if name in stages)
        calibrated, only = (identity["settings"].get(name) for name in ("calibration", "only"))
    except (ValueError, KeyError, TypeError, StopIteration):
        raise InputError("does not say how the matrix was made", file=uri) from None
    if calibrated:
        raise InputError("the values of this run are calibrated already; use a run without a calibration", file=uri)
    if only:
        raise InputError(
            "judge.only let some cells keep an estimate; use a run whose judge was asked for all", file=uri
        )
    return made_for(identity)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()
