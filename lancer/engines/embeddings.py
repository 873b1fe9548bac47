"""Embeddings of a whole corpus, computed once and kept as Parquet: for dense retrieval and for cosines of candidates.

A part holds the documents of one range of ids, in their order; a folder (of this machine's cache, of a shared disk or
below an s3:// prefix) holds the parts of one corpus by one model. A part is packed by itself and committed in one step:
what is interrupted goes on, several engines share the work, and bits do not depend on who did what.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from lancer.engines.cache import cache_dir
from lancer.engines.documents import DocumentStore
from lancer.engines.exact_search import FloatArray, search
from lancer.engines.protocols import Hit
from lancer.errors import SetupError
from lancer.storage import Storage, join

log = logging.getLogger(__name__)

EMBEDDINGS_VERSION: Final = 1  # change it with anything here that changes what a part holds
PART_DOCUMENTS: Final = 1024  # 1.5 MB of 384 dimensions; a quarter of a minute of one core with MiniLM
_READERS: Final = 8  # parts that are read at the same time

Embed = Callable[[Sequence[str]], FloatArray]


@dataclass(frozen=True)
class CorpusEmbeddings:
    """Unit vectors of all documents that have text, in memory: 1.5 GB per million documents of 384 dimensions.

    `doc_ids` ascend in the order of their UTF-8 bytes; `blocks` have shape (documents, dimensions) and follow them.
    `digests`: of each document's text.
    """

    doc_ids: list[str]
    digests: list[bytes]
    blocks: list[FloatArray]

    def search(self, query: FloatArray, depth: int) -> list[Hit]:
        """At most `depth` documents by cosine, ties by id. `query` is a unit vector."""
        rows, scores = search(self.blocks, query, depth)
        return [Hit(self.doc_ids[row], float(score)) for row, score in zip(rows, scores, strict=True)]

    def of_text(self, text: str) -> FloatArray | None:
        """The vector of a document with exactly this text."""
        row = self._row_of.get(text_digest(text))
        if row is None:
            return None
        block = int(np.searchsorted(self._ends, row, side="right"))
        vector: FloatArray = self.blocks[block][row - int(self._ends[block]) + len(self.blocks[block])]
        return vector

    @cached_property
    def _row_of(self) -> dict[bytes, int]:
        return {digest: row for row, digest in enumerate(self.digests)}

    @cached_property
    def _ends(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.cumsum([len(block) for block in self.blocks], dtype=np.int64)


def text_digest(text: str) -> bytes:
    """Identifies a document's text; 16 bytes."""
    return hashlib.sha256(text.encode()).digest()[:16]


@dataclass(frozen=True)
class Shelf:
    """Where the parts of one corpus by one model lie. `key` identifies both; `size` is the documents of a part."""

    folder: str
    key: str
    storage: Storage
    size: int = PART_DOCUMENTS

    def uri(self, number: int) -> str:
        """Of a part."""
        return join(self.folder, self.key, f"part-{number:06d}.parquet")

    def present(self) -> set[str]:
        """Parts that are there."""
        return {entry.uri for entry in self.storage.list(join(self.folder, self.key), "part-")}


def corpus_embeddings(documents: DocumentStore, shelf: Shelf, embed: Embed) -> CorpusEmbeddings:
    """All parts, those that are missing made by `embed`. A damaged one is made again.

    SetupError: the cache folder cannot be written. OutputError, StorageError: `shelf.folder` cannot.
    """
    starts = documents.starts(shelf.size)
    _make(documents, shelf, starts, embed)
    with ThreadPoolExecutor(_READERS) as readers:
        tables = list(readers.map(lambda number: _read(shelf, number), range(len(starts))))
    for number, table in enumerate(tables):
        if table is None:
            shelf.storage.delete(shelf.uri(number))
            _make(documents, shelf, starts, embed)
            tables[number] = _read(shelf, number)
    whole = [table for table in tables if table is not None]
    if len(whole) < len(tables):
        raise SetupError(f"{join(shelf.folder, shelf.key)}: what is written there cannot be read again")
    return CorpusEmbeddings(
        doc_ids=[doc_id for table in whole for doc_id in table["doc_id"].to_pylist()],
        digests=[digest for table in whole for digest in table["text_digest"].to_pylist()],
        blocks=[_vectors(table) for table in whole],
    )


def _make(documents: DocumentStore, shelf: Shelf, starts: Sequence[str], embed: Embed) -> None:
    """The missing parts. Engines begin at different ones, and come back to those that another has under way here."""
    present = shelf.present()
    missing = [number for number in range(len(starts)) if shelf.uri(number) not in present]
    turn = os.getpid() % max(1, len(missing))
    waiting = missing[turn:] + missing[:turn]
    for patient in (False, True):
        left = []
        for done, number in enumerate(waiting):
            with _alone(shelf, number, wait=patient) as free:
                if not free:
                    left.append(number)
                elif not shelf.storage.exists(shelf.uri(number)):
                    log.info("embedding part %d of %d (%d to go)", number + 1, len(starts), len(waiting) - done)
                    before = starts[number + 1] if number + 1 < len(starts) else None
                    shelf.storage.write(shelf.uri(number), _part(documents, starts[number], before, embed))
        waiting = left


@contextmanager
def _alone(shelf: Shelf, number: int, *, wait: bool) -> Iterator[bool]:
    """Holds a part among the engines of this machine, wherever the part goes; False: another one holds it."""
    folder = cache_dir() / "embeddings" / shelf.key
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / f"part-{number:06d}.lock")
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        yield False
        return
    except OSError as error:
        raise SetupError(f"cannot write the cache folder {folder}: {error}; set LANCER_CACHE to another") from None
    try:
        yield True
    finally:
        lock.release()


def _part(documents: DocumentStore, first: str, before: str | None, embed: Embed) -> bytes:
    """A part's file. Pages carry checksums, so that a damaged one shows."""
    rows = list(documents.items(first, before))
    vectors = embed([text for _, text in rows])
    flat = pa.array(vectors.ravel(), pa.float32())
    columns = {
        "doc_id": pa.array([doc_id for doc_id, _ in rows], pa.string()),
        "text_digest": pa.array([text_digest(text) for _, text in rows], pa.binary(16)),
        "vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1]),
    }
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="none", use_dictionary=False, write_page_checksum=True)
    return buffer.getvalue()


def _read(shelf: Shelf, number: int) -> pa.Table | None:
    """A part, or None when it is damaged."""
    uri = shelf.uri(number)
    try:
        return pq.read_table(io.BytesIO(shelf.storage.read(uri)), page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        log.warning("%s is damaged and made again: %s", uri, error)
        return None


def _vectors(table: pa.Table) -> FloatArray:
    column = table["vector"].combine_chunks()
    vectors: FloatArray = column.values.to_numpy(zero_copy_only=False).reshape(len(table), column.type.list_size)
    return vectors
