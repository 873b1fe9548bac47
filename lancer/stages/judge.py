"""Stage judge: every (candidate, sub-question) pair → a rating 0–5 by an LLM with a rubric (LANCER, section 4).

What the model says is kept as it is; what cannot be read is null, never a number. How a prompt is laid out is in
`lancer.prompts.judge`, how a value is read from an answer in `lancer.stages.readouts`. After stage estimate only the
cells that matter are asked (`lancer.stages.cascade`); the others keep the estimate, with a status of their own.
"""

from __future__ import annotations

from collections import Counter
from importlib import metadata
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from lancer import schema
from lancer.closed import Closed
from lancer.errors import UsageError
from lancer.evaluation.calibration_file import Calibration, read_calibration
from lancer.prompts import judge as prompt
from lancer.prompts.judge import Layout, layout_of
from lancer.prompts.template import Template, load_template
from lancer.schema import MATRIX, CellStatus, Scale
from lancer.selection.matrix import FloatArray
from lancer.stages.base import Engines, StageOutput
from lancer.stages.cascade import Cascade, JudgeOnly, linear
from lancer.stages.judging import PRIORITY, Judging, Query
from lancer.stages.readouts import Digit, Expected, Likelihood, Outcome, Readout
from lancer.stages.records import Failure
from lancer.stages.room import Room
from lancer.storage import Storage
from lancer.text import sentences


class JudgeConfig(Closed):
    """How an LLM is asked for ratings."""

    engine: str = "llm"
    layout: Literal["shared-prefix", "published", "per-document"] = "shared-prefix"
    prompt: str | None = None  # a file with the prompt's text in place of the layout's own
    pad_to_blocks: bool | None = None  # the document to a block of the prefix cache; null = where the layout shares it
    with_request: bool = True  # prepend the request; off for oracle sub-questions, which stand alone
    readout: Literal["digit", "expected", "likelihood"] = "digit"
    structured: bool = True  # digit: restrict the output to the digits; off = free text, so that refusals show
    calibration: str | None = None  # a file that `lancer calibrate` wrote
    attempts: int = Field(2, ge=1, le=10)
    max_tokens: int | None = Field(
        None, ge=1
    )  # digit: of the output; null = 3 (published), per document by their number
    temperature: float = Field(0.0, ge=0, le=2)
    seed: int = 0
    long_documents: Literal["cut", "windows"] = "cut"  # those that do not fit: their beginning, or all with the maximum
    max_document_tokens: int | None = Field(None, ge=16)  # judge no more of a document, or no longer windows
    only: JudgeOnly | None = None  # the cells to ask for after stage estimate; null = all, without it

    @model_validator(mode="after")
    def _possible(self) -> JudgeConfig:
        if self.readout != "digit":
            if self.layout == "per-document":
                raise ValueError(
                    f"`readout` {self.readout!r} reads one rating per prompt, `layout` 'per-document' asks for all: "
                    "choose readout 'digit', or layout 'shared-prefix' or 'published'"
                )
            if not self.structured:
                raise ValueError(
                    f"`structured` is about readout 'digit'; {self.readout!r} lets the model write nothing"
                )
            for name in ("max_tokens", "temperature"):
                if getattr(self, name):
                    raise ValueError(
                        f"`{name}` is about readout 'digit'; {self.readout!r} lets the model write nothing"
                    )
        if self.pad_to_blocks and self.layout != "shared-prefix":
            raise ValueError(f"`pad_to_blocks` needs layout 'shared-prefix': {self.layout!r} uses no document twice")
        return self


def make_judge(config: JudgeConfig, storage: Storage) -> Judge:
    """Reads the files that the config names. UsageError or InputError: they cannot be used."""
    template = load_template(config.prompt, storage) if config.prompt else None
    calibration = read_calibration(config.calibration, storage) if config.calibration else None
    of_estimates = config.only.calibration if config.only else None
    estimates = read_calibration(of_estimates, storage) if of_estimates else None
    return Judge(config, template=template, calibration=calibration, estimates=estimates)


class Judge:
    """Adds `ratings` or `probabilities`, with status and raw output per cell, and how much of a document was left out.

    `estimates` maps the estimator's probabilities to ratings, for cells that are not asked; None = 5 · p.
    UsageError: a prompt whose places have another order than the layout; `only` without ratings. InputError: a
    calibration of other values.
    """

    name = "judge"
    priority = PRIORITY

    def __init__(
        self,
        config: JudgeConfig,
        *,
        template: Template | None = None,
        calibration: Calibration | None = None,
        estimates: Calibration | None = None,
    ) -> None:
        self._config = config
        self._layout = _layout(config, template)
        self._readout = _readout(config, self._layout)
        self.calibration = calibration
        if calibration is not None:
            calibration.check_scale(self._readout.scale, str(config.calibration))
        self.estimates = estimates
        if config.only is not None:
            _check_only(config.only, self.scale, estimates)
            if config.only.probe is not None and self._layout.per_document:
                raise UsageError(
                    "`judge.only.probe` judges some cells of a document, layout 'per-document' all of them"
                )

    @property
    def reads(self) -> tuple[pa.Field, ...]:
        """With `only`, the estimates too."""
        estimates = () if self._config.only is None else (schema.PROBABILITIES,)
        return (schema.TEXT, schema.CANDIDATES, schema.SUB_QUESTIONS, *estimates)

    @property
    def scale(self) -> Scale:
        """Of the matrix."""
        return self.calibration.scale if self.calibration else self._readout.scale

    @property
    def adds(self) -> tuple[pa.Field, ...]:
        """The matrix in its scale."""
        fields = MATRIX[self.scale]
        return (fields.values, fields.status, fields.raw, schema.CUT_CHARACTERS)

    @property
    def engines(self) -> tuple[str, ...]:
        """The text engine."""
        return (self._config.engine,)

    @property
    def calibration_file(self) -> str | None:
        """Where the calibration was read."""
        return self._config.calibration

    def identity(self) -> dict[str, Any]:
        """Sampling, prompt, reader and calibration."""
        own = self._config.model_dump(mode="json", exclude={"engine", "layout", "prompt", "calibration"})
        settings = own | {"splitter": sentences.VERSION, "sentencex": metadata.version("sentencex")}
        settings |= {"pad_to_blocks": self._pad, "calibration": self.calibration and self.calibration.digest}
        if self._config.only is not None:
            settings["only"] |= {"calibration": self.estimates and self.estimates.digest}
        return settings | self._layout.identity() | {"reader": prompt.VERSION}

    def run(self, batch: pa.Table, engines: Engines) -> StageOutput:
        """A matrix of shape (candidates, sub_questions) per query."""
        queries = self._queries(batch, engines)
        judging = Judging(
            queries, engines.text(self._config.engine), self._layout, self._readout, self._pad, self._config.attempts
        )
        estimated: list[FloatArray | None] = [None] * len(queries)
        if self._config.only is None:
            judging.ask([query.cells for query in queries])
        else:
            estimated = self._in_rounds(self._config.only, judging, batch[schema.PROBABILITIES.name].to_pylist())
        columns: dict[str, list[object]] = {f.name: [] for f in self.adds}
        for query, estimates in zip(queries, estimated, strict=True):
            cut = [None if pieces is None else pieces.cut for pieces in query.pieces]
            for values, more in zip(columns.values(), (*self._matrix(query, estimates), cut), strict=True):
                values.append(more)
        ledger = judging.ledger(stage=self.name, engine=self._config.engine)
        return StageOutput(columns, ledger, [f for query in queries for f in self._failures(query)])

    def _in_rounds(
        self, only: JudgeOnly, judging: Judging, probabilities: list[list[list[float | None]]]
    ) -> list[FloatArray | None]:
        """Asks for the cells that matter; the estimates as ratings, (candidates, sub_questions) per query."""
        rating_of = self.estimates.apply if self.estimates else linear
        cascades = []
        for query, cells in zip(judging.queries, probabilities, strict=True):
            has_text = [pieces is not None for pieces in query.pieces]
            table = np.array([[np.nan if p is None else p for p in line] for line in cells], dtype=np.float64)
            table = table.reshape(len(has_text), len(query.sub_questions))
            whole = self._layout.per_document
            cascades.append(Cascade(only, table, has_text, rating_of=rating_of, whole_documents=whole))
        while any(wanted := [cascade.ask() for cascade in cascades]):
            judging.ask(wanted)
            for query, cascade, asked in zip(judging.queries, cascades, wanted, strict=True):
                outcomes = [(cell, query.outcome(cell)) for cell in asked]
                cascade.tell({cell: self._value(outcome) if outcome else None for cell, outcome in outcomes})
        return [cascade.ratings for cascade in cascades]

    @property
    def _pad(self) -> bool:
        return (
            self._layout.name == "shared-prefix" if self._config.pad_to_blocks is None else self._config.pad_to_blocks
        )

    def _queries(self, batch: pa.Table, engines: Engines) -> list[Query]:
        table = batch.to_pylist()
        unique = sorted({c["doc_id"] for row in table for c in row["candidates"] if c["has_text"]})
        texts = dict(zip(unique, engines.documents().texts(unique), strict=True))
        queries = []
        for row in table:
            sub_questions = [q["text"] for q in row["sub_questions"]]
            request = row["text"] if self._config.with_request else None
            room = self._room(engines, request, sub_questions)
            known = [texts.get(c["doc_id"]) for c in row["candidates"]]
            pieces = [None if text is None else room.pieces(text, self._config.long_documents) for text in known]
            retry = row.get(schema.RETRY.name, False)
            queries.append(Query(row["query_id"], request, sub_questions, pieces, retry))
        return queries

    def _room(self, engines: Engines, request: str | None, sub_questions: list[str]) -> Room:
        n = len(sub_questions) if self._layout.per_document else 1
        return Room(
            engines=engines,
            engine=self._config.engine,
            layout=self._layout,
            pad=self._pad,
            output_tokens=self._readout.sampling(n, 1).max_tokens,
            document_tokens=self._config.max_document_tokens,
            request=request,
            sub_questions=sub_questions,
        )

    def _value(self, outcome: Outcome) -> float | None:
        if outcome.value is None:
            return None
        value = self._readout.value_of(outcome.value)
        return float(self.calibration.apply(np.array([value]))[0]) if self.calibration else value

    def _matrix(
        self, query: Query, estimates: FloatArray | None
    ) -> tuple[list[list[float | None]], list[list[str]], list[list[str]]]:
        """Values, status and raw output, each of shape (candidates, sub_questions)."""
        n, m = len(query.pieces), len(query.sub_questions)
        values: list[list[float | None]] = [[None] * m for _ in range(n)]
        status = [[str(CellStatus.no_text)] * m for _ in range(n)]
        raw = [[""] * m for _ in range(n)]
        for i, j in query.cells:
            outcome = query.outcome((i, j))
            if outcome is None and estimates is not None:
                known = not np.isnan(estimates[i, j])
                values[i][j] = float(estimates[i, j]) if known else None
                status[i][j] = str(CellStatus.estimated if known else CellStatus.error)
            if outcome is None:
                continue
            values[i][j], raw[i][j] = self._value(outcome), outcome.raw
            status[i][j] = str(_status(outcome))
        return values, status, raw

    def _failures(self, query: Query) -> list[Failure]:
        outcomes = [outcome for cell in query.cells if (outcome := query.outcome(cell)) is not None]
        errors = [o.error for o in outcomes if o.error]
        unread = Counter(o.reason for o in outcomes if o.value is None and not o.error)
        details = {
            CellStatus.unreadable: ", ".join(f"{reason} {count}" for reason, count in unread.most_common()),
            CellStatus.error: f"e.g. {min(errors)}" if errors else "",
        }
        counts = {CellStatus.unreadable: unread.total(), CellStatus.error: len(errors)}
        last = max(query.calls, default=1)  # what failed, or could be read, was not asked again
        cells = len(query.pieces) * len(query.sub_questions) if self._config.only is None else len(outcomes)
        return [
            Failure(
                query_id=query.query_id,
                stage=self.name,
                attempt=last,
                reason=str(reason),
                detail=f"{counts[reason]} of {cells} cells: {details[reason]}",
            )
            for reason in counts
            if counts[reason]
        ]


def _status(outcome: Outcome) -> CellStatus:
    if outcome.error:
        return CellStatus.error
    return CellStatus.unreadable if outcome.value is None else CellStatus.ok


def _check_only(only: JudgeOnly, scale: Scale, estimates: Calibration | None) -> None:
    if scale is not Scale.rating:
        raise UsageError(
            "`judge.only` puts estimates beside ratings, but this judge gives probabilities: choose readout 'digit' or "
            "'expected', or a calibration to ratings"
        )
    if estimates is not None:
        estimates.check_scale(Scale.probability, str(only.calibration))
        if estimates.scale is not Scale.rating:
            raise UsageError(
                f"{only.calibration}: maps to {estimates.scale.value}; `judge.only.calibration` needs ratings"
            )


def _layout(config: JudgeConfig, template: Template | None) -> Layout:
    layout = layout_of(config.layout, template)
    if template is None:
        return layout
    shared = layout.prompt(request=None, document="", sub_questions=["?"]).shared > 0
    if shared == (config.layout == "published"):
        wanted = "{sub_question} before {document}" if shared else "{document} before {sub_question}"
        raise UsageError(f"{config.prompt}: layout {config.layout!r} needs {wanted}")
    return layout


def _readout(config: JudgeConfig, layout: Layout) -> Readout:
    if config.readout == "likelihood":
        return Likelihood("document" if config.layout == "published" else "sub_question")
    if config.readout == "expected":
        return Expected()
    return Digit(layout.per_document, config.structured, config.max_tokens, config.temperature, config.seed)
