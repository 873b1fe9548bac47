"""The inputs of a run, read and checked on the driver before any engine starts: one row per query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lancer import schema
from lancer.config import Config
from lancer.engines.documents import corpus_digest
from lancer.engines.lucene import LuceneConfig
from lancer.engines.lucene_index import index_digest
from lancer.engines.sources import DocumentSource, candidate_documents, digest_of
from lancer.errors import InputError, UsageError
from lancer.formats.aliases import BODIES
from lancer.formats.qrels import read_qrels
from lancer.formats.requests import Request, read_requests
from lancer.formats.runs import read_run
from lancer.formats.sub_questions import read_sub_questions
from lancer.storage import Storage


@dataclass(frozen=True)
class Inputs:
    """`table` has `lancer.schema.INPUT_SCHEMA`, in the order of the requests; `notes` are for people."""

    table: pa.Table
    source: DocumentSource
    notes: list[str] = field(default_factory=list)


def read_inputs(config: Config, storage: Storage) -> Inputs:
    """Reads requests, given candidates, given sub-questions; InputError when they do not fit together or the corpus."""
    requests = read_requests(config.requests, storage)
    notes: list[str] = []
    candidates = _candidates(config, requests, storage, notes)
    sub_questions = _sub_questions(config, requests, storage, notes)
    source = _source(config, requests, storage)
    if source.kind != "index":
        _check_text(candidates, source, config, storage, notes)
    _check_qrels(config, requests, storage)
    rows = [
        {
            "query_id": r.query_id,
            "text": r.text,
            "title": r.title,
            "background": r.background,
            "problem_statement": r.problem_statement,
            "given_candidates": given,
            "given_sub_questions": questions,
        }
        for r, given, questions in zip(requests, candidates, sub_questions, strict=True)
    ]
    return Inputs(pa.Table.from_pylist(rows, schema=schema.INPUT_SCHEMA), source, notes)


Given = list[dict[str, Any]] | None


def _candidates(config: Config, requests: list[Request], storage: Storage, notes: list[str]) -> Sequence[Given]:
    if config.retrieve.source == "requests":
        if not any(r.candidates for r in requests):
            raise InputError("retrieve.source is 'requests', but no request has candidates", file=config.requests)
        if without := sum(not r.candidates for r in requests):
            notes.append(f"{config.requests}: {without} of {len(requests)} requests have no candidates")
        return [[{"doc_id": c.doc_id, "score": c.score} for c in r.candidates or ()] for r in requests]
    if config.retrieve.run is None:
        return [None] * len(requests)
    run = read_run(config.retrieve.run, storage)
    notes.extend(f"{config.retrieve.run}: {note}" for note in run.notes)
    _check_shared(run.rankings, requests, config.retrieve.run, "candidates", notes)
    return [[{"doc_id": d, "score": s} for d, s in run.rankings.get(r.query_id, ())] for r in requests]


def _sub_questions(config: Config, requests: list[Request], storage: Storage, notes: list[str]) -> Sequence[Given]:
    if config.decompose is None or config.decompose.path is None:
        return [None] * len(requests)
    given = read_sub_questions(config.decompose.path, storage)
    _check_shared(given, requests, config.decompose.path, "sub-questions", notes)
    return [[{"id": q.id, "text": q.text} for q in given.get(r.query_id, ())] for r in requests]


def _check_shared(given: dict[str, Any], requests: list[Request], file: str, what: str, notes: list[str]) -> None:
    wanted = {r.query_id for r in requests}
    if not wanted & given.keys():
        example = f"{next(iter(given))!r} there, {requests[0].query_id!r} in the requests"
        raise InputError(f"has no query of the requests; e.g. {example}", file=file)
    if missing := len(wanted - given.keys()):
        notes.append(f"{file}: {missing} of {len(wanted)} requests have no {what} there")
    if extra := len(given.keys() - wanted):
        notes.append(f"{file}: queries that are not in the requests, left out: {extra}")


def _source(config: Config, requests: list[Request], storage: Storage) -> DocumentSource:
    if config.corpus is not None:
        return DocumentSource("corpus", config.corpus, corpus_digest(config.corpus, storage))
    if config.retrieve.source == "requests":
        documents = list(candidate_documents(requests, config.requests))
        if not documents:
            reason = "no candidate has a text and no `corpus` is given: there is nothing to score"
            raise InputError(reason, file=config.requests)
        return DocumentSource("requests", config.requests, digest_of(documents))
    engine = config.engines.get(config.retrieve.engine)
    if config.retrieve.source == "bm25" and isinstance(engine, LuceneConfig) and engine.index is not None:
        return DocumentSource("index", config.retrieve.engine, index_digest(engine.index, storage))
    raise UsageError("key 'corpus' is missing: the documents have no text without it")


def _check_text(
    candidates: Sequence[Given], source: DocumentSource, config: Config, storage: Storage, notes: list[str]
) -> None:
    store = source.open(storage)
    if next(store.items(), None) is None:
        raise InputError(f"no document has a text; it is one of {', '.join(BODIES)}, or title", file=source.location)
    wanted = sorted({c["doc_id"] for given in candidates for c in given or ()})
    if not wanted:
        return
    missing = store.missing(wanted)
    where = config.retrieve.run or config.requests
    if len(missing) == len(wanted):
        reason = f"none of its {len(wanted)} candidates is in {source.location}; e.g. {wanted[0]!r}"
        raise InputError(reason, file=where)
    if missing:
        notes.append(f"{where}: {len(missing)} of {len(wanted)} candidates have no text, e.g. {missing[0]!r}")


def _check_qrels(config: Config, requests: list[Request], storage: Storage) -> None:
    """Now, as they are needed at the end of the run only."""
    if config.qrels is None:
        return
    judged = {judgment.query_id for judgment in read_qrels(config.qrels, storage)}
    if not judged & {r.query_id for r in requests}:
        example = f"{min(judged)!r} there, {requests[0].query_id!r} in the requests"
        raise InputError(f"has no query of the requests; e.g. {example}", file=config.qrels)
