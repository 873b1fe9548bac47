"""BEIR folders: where corpus, queries and judgments of one data set lie.

The readers of corpora, requests and qrels take such a folder in place of a file and find their part of it here.
"""

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


def beir_folder(path: str | Path, storage: Storage | None = None) -> BeirFolder | None:
    """The files of a folder or prefix: `corpus.jsonl`, `queries.jsonl`, `qrels/SPLIT.tsv`, each also `.gz`.

    `qrels.SPLIT.tsv` beside the corpus is taken too. None where `path` is no folder with a corpus and queries.
    """
    base = str(path).rstrip("/") + "/"
    names = {entry.uri.removeprefix(base): entry.uri for entry in (storage or Storage()).list(base)}
    corpus = [uri for name, uri in names.items() if _CORPUS.match(name)]
    queries = [uri for name, uri in names.items() if _QUERIES.match(name)]
    if not corpus or not queries:
        return None
    qrels = {match["split"]: uri for name, uri in names.items() if (match := _QRELS.match(name))}
    return BeirFolder(corpus[0], queries[0], qrels)


def beir_queries(path: str | Path, storage: Storage | None = None) -> str | Path:
    """The queries of a BEIR folder; `path` itself where it is none."""
    folder = _folder(path, storage)
    return path if folder is None else folder.queries


def beir_qrels(path: str | Path, storage: Storage | None = None) -> str | Path:
    """The judgments of a BEIR folder; `path` itself where it is none. InputError: none, or several to choose from."""
    folder = _folder(path, storage)
    if folder is None:
        return path
    if len(folder.qrels) != 1:
        found = f"several qrels; give one of them: {', '.join(folder.qrels.values())}" if folder.qrels else "no qrels"
        raise InputError(f"a BEIR folder with {found}", file=path)
    return next(iter(folder.qrels.values()))


def _folder(path: str | Path, storage: Storage | None) -> BeirFolder | None:
    return None if (storage or Storage()).exists(str(path)) else beir_folder(path, storage)
