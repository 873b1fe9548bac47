"""Document text by id: the corpus as one read-only SQLite file per content, in the cache folder of each machine.

The rows of a run carry document ids only; the stages that need text ask here, and `lucene_index` indexes from here.
"""

from __future__ import annotations

import hashlib
import json
import logging
import random
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from lancer.engines.cache import building, cache_dir
from lancer.errors import InputError, SetupError
from lancer.formats.corpora import Located, corpus_files, read_corpus
from lancer.storage import Storage

log = logging.getLogger(__name__)

FILE_NAME: Final = "documents.sqlite"
_CHUNK_BYTES: Final = 1 << 20

# A plain table, not WITHOUT ROWID: 300,000 documents of 1 kB with hashed ids took 3.7 s and 424 MB like this, 16.5 s
# and 1,406 MB without row ids, whose B-tree moves whole texts about.
_TABLES: Final = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    PRAGMA cache_size = -131072;
    BEGIN;
    CREATE TABLE documents (doc_id TEXT PRIMARY KEY, title TEXT, text TEXT NOT NULL, file INTEGER, line INTEGER);
    CREATE TABLE files (id INTEGER PRIMARY KEY, name TEXT UNIQUE);
    CREATE TABLE counts (documents INTEGER, repeated INTEGER);
"""


class DocumentStore:
    """The documents of one corpus, read-only. Usable from many threads (a connection each); pickles as its path.

    SetupError: the file is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        try:
            counts = self._connection().execute("SELECT documents, repeated FROM counts").fetchone()
        except sqlite3.Error as error:
            raise SetupError(f"{path} is damaged ({error}); remove its folder, it is built again") from error
        self._count, self.repeated = int(counts[0]), int(counts[1])

    def __reduce__(self) -> tuple[object, ...]:
        return DocumentStore, (self.path,)

    def __contains__(self, doc_id: str) -> bool:
        return not self.missing([doc_id])

    def count(self) -> int:
        """Number of documents; `repeated` is the number of exact repeats that were left out."""
        return self._count

    def texts(self, doc_ids: Sequence[str]) -> list[str | None]:
        """Title, newline and body of each document (one of them where the other is empty); None: unknown or no text."""
        rows = self._connection().execute(
            "SELECT doc_id, title, text FROM documents WHERE doc_id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(doc_ids)),),
        )
        found = {doc_id: _join(title, text) for doc_id, title, text in rows}
        return [found.get(doc_id) for doc_id in doc_ids]

    def sample(self, count: int, seed: int) -> list[str]:
        """Ids of so many documents, drawn without replacement; all of them where there are fewer."""
        rows = random.Random(seed).sample(range(1, self._count + 1), min(count, self._count))
        found = self._connection().execute(
            "SELECT doc_id FROM documents WHERE rowid IN (SELECT value FROM json_each(?)) ORDER BY rowid",
            (json.dumps(rows),),
        )
        return [doc_id for (doc_id,) in found]

    def items(self, first: str = "", before: str | None = None) -> Iterator[tuple[str, str]]:
        """(doc_id, text) of every document that has text, by doc_id in the order of its UTF-8 bytes.

        Only ids from `first` on, and smaller than `before`.
        """
        end, bounds = ("", (first,)) if before is None else ("AND doc_id < ?", (first, before))
        rows = self._connection().execute(
            f"SELECT doc_id, title, text FROM documents WHERE doc_id >= ? {end} ORDER BY doc_id", bounds
        )
        for doc_id, title, text in rows:
            if (joined := _join(title, text)) is not None:
                yield doc_id, joined

    def starts(self, size: int) -> list[str]:
        """Every `size`-th doc_id, in the order of `items`: where its parts of `size` documents begin."""
        rows = self._connection().execute("SELECT doc_id FROM documents ORDER BY doc_id")
        return [doc_id for number, (doc_id,) in enumerate(rows) if number % size == 0]

    def missing(self, doc_ids: Iterable[str]) -> list[str]:
        """Those ids that the corpus does not hold, in the given order, each once."""
        wanted = list(dict.fromkeys(doc_ids))
        rows = self._connection().execute(
            "SELECT doc_id FROM documents WHERE doc_id IN (SELECT value FROM json_each(?))", (json.dumps(wanted),)
        )
        known = {doc_id for (doc_id,) in rows}
        return [doc_id for doc_id in wanted if doc_id not in known]

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            # immutable: the file never changes once it has its name, and a read-only cache allows no lock file.
            uri = f"{self.path.absolute().as_uri()}?mode=ro&immutable=1"
            connection = self._local.connection = sqlite3.connect(uri, uri=True)
        return connection


def corpus_digest(path: str | Path, storage: Storage) -> str:
    """SHA-256, as hex, of the sorted (name below `path`, size, SHA-256) of the corpus's files: its identity wherever
    it lies. InputError: as `corpus_files`."""
    root = str(path).rstrip("/") + "/"
    manifest = []
    for uri in corpus_files(path, storage):
        content, size = hashlib.sha256(), 0
        with storage.open(uri) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                content.update(chunk)
                size += len(chunk)
        name = uri.removeprefix(root) if uri.startswith(root) else uri.rsplit("/", 1)[-1]
        manifest.append((name, size, content.hexdigest()))
    return hashlib.sha256(json.dumps(sorted(manifest)).encode()).hexdigest()


def build_store(path: str | Path, storage: Storage, digest: str) -> Path:
    """The store of a corpus whose `corpus_digest` is `digest`, built unless this machine has it.

    InputError: a malformed file, no document, or a repeated id whose content differs.
    """
    return build_store_from(read_corpus(path, storage), digest)


def build_store_from(documents: Iterable[Located], digest: str) -> Path:
    """The same from documents at hand, such as the candidate texts inside requests; `digest` identifies them.

    `documents` is read only when the store has to be built.
    """
    folder = cache_dir() / "corpora" / digest[:16]
    with building(folder) as scratch:
        if scratch is not None:
            with closing(sqlite3.connect(scratch / FILE_NAME, isolation_level=None)) as connection:
                connection.executescript(_TABLES)
                count, repeated = _insert(connection, documents)
                connection.execute("INSERT INTO counts VALUES (?, ?)", (count, repeated))
                connection.execute("COMMIT")
            log.info("stored %d documents (%d exact repeats left out) in %s", count, repeated, folder)
    return folder / FILE_NAME


def _insert(connection: sqlite3.Connection, documents: Iterable[Located]) -> tuple[int, int]:
    """How many documents were inserted, and how many were exact repeats."""
    count = repeated = 0
    files: dict[str, int] = {}
    for (doc_id, title, text), file, line in documents:
        if file not in files:
            files[file] = len(files)
            connection.execute("INSERT INTO files VALUES (?, ?)", (files[file], file))
        inserted = connection.execute(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (doc_id, title, text, files[file], line),
        )
        if inserted.rowcount:
            count += 1
            continue
        *stored, first_file, first_line = connection.execute(
            "SELECT title, text, name, line FROM documents JOIN files ON files.id = file WHERE doc_id = ?", (doc_id,)
        ).fetchone()
        if stored != [title, text]:
            reason = f"document {doc_id!r} is here with other content than at {first_file}:{first_line}"
            raise InputError(reason, file=file, line=line)
        repeated += 1
    if not count:
        raise InputError("there is no document at all")
    return count, repeated


def _join(title: str | None, text: str) -> str | None:
    return "\n".join(part for part in (title, text) if part) or None
