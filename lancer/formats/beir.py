"""BEIR folders: where corpus, queries and judgments of one data set lie."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lancer.errors import InputError
from lancer.storage import Storage

_CORPUS: Final = re.compile(r"corpus\.jsonl(\.gz)?$")
_QUERIES: Final = re.compile(r"queries\.jsonl(\.gz)?$")
_QRELS: Final = re.compile(r"qrels[/.](?P<split>[^/.]+)\.tsv(\.gz)?$")


@dataclass(frozen=True)
class BeirFolder:
    """URIs for `read_corpus`, `read_requests` and, per split, `read_qrels`."""

    corpus: str
    queries: str
    qrels: dict[str, str]


def beir_folder(path: str | Path, storage: Storage | None = None) -> BeirFolder:
    """The files of a folder or prefix: `corpus.jsonl`, `queries.jsonl`, `qrels/SPLIT.tsv`, each also `.gz`.

    `qrels.SPLIT.tsv` beside the corpus is taken too. InputError: no corpus or no queries in it.
    """
    base = str(path).rstrip("/") + "/"
    names = {entry.uri.removeprefix(base): entry.uri for entry in (storage or Storage()).list(base)}
    corpus = [uri for name, uri in names.items() if _CORPUS.match(name)]
    queries = [uri for name, uri in names.items() if _QUERIES.match(name)]
    for what, found in (("corpus.jsonl", corpus), ("queries.jsonl", queries)):
        if not found:
            raise InputError(f"no BEIR folder: {what} (or {what}.gz) is not in it", file=path)
    qrels = {match["split"]: uri for name, uri in names.items() if (match := _QRELS.match(name))}
    return BeirFolder(corpus[0], queries[0], qrels)
