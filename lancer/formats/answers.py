"""Cited answers as TREC campaigns exchange them; inside, a citation is always a document id."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lancer.errors import InputError
from lancer.formats.aliases import query_id_of
from lancer.formats.records import Place, Record, as_id, as_list, as_number, as_object, as_text, read_records
from lancer.storage import Storage


@dataclass(frozen=True)
class Sentence:
    """One sentence and the documents it cites, in the order of citing."""

    text: str
    doc_ids: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """The answer to one query. `references`: all documents it may cite, which may be more than it does."""

    query_id: str
    run_id: str | None
    references: tuple[str, ...]
    sentences: tuple[Sentence, ...]


def read_answers(path: str | Path, storage: Storage | None = None) -> list[Answer]:
    """The answers of a file, in its order.

    Shapes, JSON Lines or an array; query id and `run_id` stand in `metadata` or beside it:
    - TREC RAG `{"metadata", "references": [doc_id], "answer": [{"text", "citations": [index into references]}]}`,
    - RAGTIME and NeuCLIR `{"metadata", "responses": [{"text", "citations": [doc_id] or {doc_id: score}}]}`; scored
      citations are ordered by score, highest first. The references are the cited documents where none are listed.
    InputError: neither shape, no query id, a query answered twice, a citation that is no index of `references` or no
    document id, a sentence without text.
    """
    found: dict[str, Answer] = {}
    for place, record in read_records(path, storage):
        answer = _answer(record, place)
        if answer.query_id in found:
            raise place.error(f"query {answer.query_id!r} is answered twice")
        found[answer.query_id] = answer
    if not found:
        raise InputError("holds no answer", file=path)
    return list(found.values())


def trec_rag_record(answer: Answer) -> Record:
    """The answer in TREC RAG's shape: citations are indices into `references`."""
    index = {doc_id: position for position, doc_id in enumerate(answer.references)}
    sentences = [{"text": s.text, "citations": [index[doc_id] for doc_id in s.doc_ids]} for s in answer.sentences]
    metadata = {"run_id": answer.run_id, "narrative_id": answer.query_id}
    return {
        "metadata": metadata,
        "references": list(answer.references),
        "answer": sentences,
    }


def ragtime_record(answer: Answer) -> Record:
    """The answer in RAGTIME's shape: citations are document ids."""
    sentences = [{"text": s.text, "citations": list(s.doc_ids)} for s in answer.sentences]
    metadata = {"run_id": answer.run_id, "topic_id": answer.query_id}
    return {
        "metadata": metadata,
        "references": list(answer.references),
        "responses": sentences,
    }


def write_answers(path: str | Path, records: Iterable[Record], storage: Storage | None = None) -> None:
    """Writes JSON Lines; the records come from `trec_rag_record` or `ragtime_record`."""
    with (storage or Storage()).open_write(str(path)) as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def _answer(record: Record, place: Place) -> Answer:
    metadata = {**record, **as_object(record.get("metadata", {}), place.at("metadata"))}
    query_id = query_id_of(metadata, place)
    shape = next((name for name in ("answer", "responses") if record.get(name) is not None), None)
    if shape is None:
        raise place.error("neither 'answer' (TREC RAG) nor 'responses' (RAGTIME) is there")
    here = place.at("references")
    references = [as_id(doc_id, here) for doc_id in as_list(record.get("references", []), here)]
    sentences = tuple(
        _sentence(item, references if shape == "answer" else None, place, f"{shape}[{position}]")
        for position, item in enumerate(as_list(record[shape], place.at(shape)))
    )
    cited = [doc_id for sentence in sentences for doc_id in sentence.doc_ids]
    run_id = as_text(metadata.get("run_id"), place.at("run_id"))
    return Answer(query_id, run_id, tuple(dict.fromkeys(references or cited)), sentences)


def _sentence(item: object, references: list[str] | None, place: Place, field: str) -> Sentence:
    parts = as_object(item, place.at(field))
    text = as_text(parts.get("text"), place.at(f"{field}.text"))
    if text is None:
        raise place.at(f"{field}.text").error("a sentence needs a text")
    here, citations = place.at(f"{field}.citations"), parts.get("citations", [])
    if references is not None:
        cited = [_by_index(index, references, here) for index in as_list(citations, here)]
    elif isinstance(citations, dict):
        scores = {as_id(doc_id, here): as_number(score, here) for doc_id, score in citations.items()}
        cited = sorted(scores, key=lambda doc_id: -scores[doc_id])
    else:
        cited = [as_id(doc_id, here) for doc_id in as_list(citations, here)]
    return Sentence(text, tuple(dict.fromkeys(cited)))


def _by_index(index: object, references: list[str], place: Place) -> str:
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(references):
        raise place.expected(index, f"an index into the {len(references)} references, from 0,")
    return references[index]
