"""Cells of coverage matrices, judged: the part of stage judge that is asked for some cells, all at once or in rounds.

A cell is (candidate, sub-question). `Judging.ask` judges the cells that it is given and that have no value yet; what
cannot be read is asked again, with a sharper prompt and the next seed, a set number of times. Where a query is retried
because something of it could not be read, that is asked once more, whatever a journal says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from lancer.engines.protocols import Generation, Message, TextEngine
from lancer.prompts.judge import Layout, messages_of
from lancer.stages.readouts import Outcome, Readout, gain, joined
from lancer.stages.records import LedgerRecord, of_generations
from lancer.stages.room import Pieces

PRIORITY: Final = 1  # of the judge's calls; lower ones run first

Cell = tuple[int, int]


@dataclass
class Query:
    """One query's part. `pieces` is by candidate, None without text; `read` by candidate, piece and sub-question."""

    query_id: str
    request: str | None
    sub_questions: list[str]
    pieces: list[Pieces | None]
    retry: bool = False
    read: dict[tuple[int, int, int], Outcome] = field(default_factory=dict)
    calls: dict[int, list[tuple[Generation, int]]] = field(default_factory=dict)  # attempt → each with its pairs

    @property
    def cells(self) -> list[Cell]:
        """Those that can be judged, row-major."""
        return [(i, j) for i, p in enumerate(self.pieces) if p is not None for j in range(len(self.sub_questions))]

    def outcome(self, cell: Cell) -> Outcome | None:
        """What is known of a cell; None when it was not asked."""
        i, j = cell
        pieces = self.pieces[i]
        if pieces and len(pieces.texts) == 1:  # most documents
            return self.read.get((i, 0, j))
        found = [self.read.get((i, p, j)) for p in range(len(pieces.texts) if pieces else 0)]
        known = [outcome for outcome in found if outcome is not None]
        return joined(known) if known else None


@dataclass(frozen=True)
class _Prompt:
    """One call: a piece of a document and the sub-questions that are asked of it."""

    query: Query
    candidate: int
    piece: int
    columns: tuple[int, ...]

    @property
    def document(self) -> str:
        pieces = self.query.pieces[self.candidate]
        assert pieces is not None
        return pieces.texts[self.piece]

    @property
    def sub_questions(self) -> list[str]:
        return [self.query.sub_questions[j] for j in self.columns]


@dataclass(frozen=True)
class Judging:
    """The queries of a batch before one engine."""

    queries: Sequence[Query]
    engine: TextEngine
    layout: Layout
    readout: Readout
    pad: bool
    attempts: int
    alone: dict[tuple[str, int, int], Outcome] = field(default_factory=dict)  # of scored texts by themselves

    def ask(self, wanted: Sequence[Collection[Cell]]) -> None:
        """Judges cells, given per query: those without a value whose call has not failed, `attempts` times at most; of
        queries that are retried once more those without a value.

        The prompts of an attempt go out together, those of a document one after the other.
        """
        for attempt in range(1, self.attempts + 2):
            fresh = attempt > self.attempts
            asked = [(q, cells) for q, cells in zip(self.queries, wanted, strict=True) if q.retry or not fresh]
            prompts = [prompt for query, cells in asked for prompt in self._todo(query, cells, fresh=fresh)]
            groups: dict[int, list[_Prompt]] = {}  # a call's sampling depends on the number of its sub-questions
            for prompt in prompts:
                groups.setdefault(len(prompt.columns), []).append(prompt)
            for group in groups.values():
                self._call(group, attempt)

    def ledger(self, *, stage: str, engine: str) -> list[LedgerRecord]:
        """One record per query and attempt; of a query without calls one of the first attempt."""
        return [
            of_generations(
                [generation for generation, _ in calls],
                query_id=query.query_id,
                stage=stage,
                engine=engine,
                attempt=attempt,
                pairs=sum(pairs for generation, pairs in calls if not generation.reused),
            )
            for query in self.queries
            for attempt, calls in (query.calls or {1: []}).items()
        ]

    def _todo(self, query: Query, cells: Iterable[Cell], *, fresh: bool) -> list[_Prompt]:
        columns: dict[tuple[int, int], list[int]] = {}
        for i, j in sorted(cells):
            pieces = query.pieces[i]
            for p in range(len(pieces.texts) if pieces else 0):
                known = query.read.get((i, p, j))
                if known is None or (known.value is None and (fresh or not known.error)):
                    columns.setdefault((i, p), []).append(j)
        prompts: list[_Prompt] = []
        for (i, p), asked in columns.items():
            together = [tuple(asked)] if self.layout.per_document else [(j,) for j in asked]
            prompts.extend(_Prompt(query, i, p, js) for js in together)
        return prompts

    def _call(self, prompts: Sequence[_Prompt], attempt: int) -> None:
        n, fresh = len(prompts[0].columns), attempt > self.attempts
        like = min(attempt, self.attempts)  # so that a journal has the new answer in the place of the last one
        keys = {self._alone_key(p): p for p in prompts} if self.readout.scored else {}
        new = [
            (key, prompt)
            for key, prompt in keys.items()
            if key not in self.alone or (fresh and self.alone[key].value is None)
        ]
        messages = [self._alone(p) for _, p in new] + [self._messages(p, like) for p in prompts]
        sampling = replace(self.readout.sampling(n, like), fresh=fresh)
        generations = self.engine.generate(messages, sampling, priority=PRIORITY)
        for (key, prompt), generation in zip(new, generations, strict=False):
            prompt.query.calls.setdefault(attempt, []).append((generation, 0))
            self.alone[key] = self._outcomes(generation, 1)[0]
        for prompt, generation in zip(prompts, generations[len(new) :], strict=True):
            # The windows of a document are one pair together.
            pairs = 0 if prompt.piece else n
            prompt.query.calls.setdefault(attempt, []).append((generation, pairs))
            outcomes = self._outcomes(generation, n)
            if self.readout.scored:
                outcomes = [gain(outcome, self.alone[self._alone_key(prompt)]) for outcome in outcomes]
            for j, outcome in zip(prompt.columns, outcomes, strict=True):
                prompt.query.read[prompt.candidate, prompt.piece, j] = outcome

    def _outcomes(self, generation: Generation, n: int) -> list[Outcome]:
        if generation.error:
            return [Outcome(None, error=generation.error)] * n
        return self.readout.outcomes(generation, n)

    def _messages(self, prompt: _Prompt, attempt: int) -> list[Message]:
        text = self.layout.prompt(
            request=prompt.query.request,
            document=prompt.document,
            sub_questions=prompt.sub_questions,
            sharper=attempt > 1,
        )
        return messages_of(text, pad=self.pad, scored=self.readout.scored)

    def _alone_key(self, prompt: _Prompt) -> tuple[str, int, int]:
        """One prompt without document for all documents, or one without sub-question for all sub-questions."""
        if self.readout.scored == "sub_question":
            return prompt.query.query_id, -1, prompt.columns[0]
        return prompt.query.query_id, prompt.candidate, prompt.piece

    def _alone(self, prompt: _Prompt) -> list[Message]:
        """The prompt with nothing where the other text stands."""
        sub_question = self.readout.scored == "sub_question"
        text = self.layout.prompt(
            request=prompt.query.request,
            document="" if sub_question else prompt.document,
            sub_questions=prompt.sub_questions if sub_question else [""],
        )
        return messages_of(text, pad=self.pad, scored=self.readout.scored)
