"""Documents as a stream, from whatever files a corpus comes in; nothing here holds more than one batch of them.

Text and title stay apart: whoever shows a document to a model joins them. Whether a document id repeats is for the
consumer to find out, who stores them anyway; each document comes with its file and line for that message.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.parquet as pq

from lancer.errors import InputError
from lancer.formats.aliases import BODIES, DOC_IDS, body_of, doc_id_of
from lancer.formats.beir import beir_folder
from lancer.formats.lines import JSON_ENDINGS, open_binary, read_lines, read_raw_lines
from lancer.formats.records import Place, Record, as_text, read_records
from lancer.storage import Storage, is_remote

PARQUET_ENDINGS: Final = (".parquet", ".pq")
ENDINGS: Final = (*JSON_ENDINGS, ".csv", ".tsv", *PARQUET_ENDINGS)
PARQUET_BATCH_ROWS: Final = 1024


class Document(NamedTuple):
    """`text` is "" where the file has none; `title` is None where it has none."""

    doc_id: str
    title: str | None
    text: str


class Located(NamedTuple):
    """A document and where it was read: `line` from 1, in Parquet the row from 1."""

    document: Document
    file: str
    line: int


def corpus_files(path: str | Path, storage: Storage | None = None) -> list[str]:
    """The files of a corpus, sorted: the file itself, or all below a folder or object-store prefix.

    In a folder only names that end as in `ENDINGS`, or so with `.gz`, count, and none that starts with a dot or an
    underscore; of a BEIR folder its corpus. InputError: no such file or folder, or none of them in it.
    """
    storage, uri = storage or Storage(), str(path)
    if storage.exists(uri):
        return [uri]
    if not is_remote(uri) and not Path(uri).is_dir():
        raise InputError("no such file or folder", file=path)
    beir = beir_folder(path, storage)
    if beir is not None:
        return [beir.corpus]
    files = [entry.uri for entry in storage.list(uri) if _is_corpus_name(entry.uri.rsplit("/", 1)[-1])]
    if not files:
        raise InputError(f"no corpus file in it; a name must end in one of {', '.join(ENDINGS)} (+ .gz)", file=path)
    return files


def read_corpus(path: str | Path, storage: Storage | None = None) -> Iterator[Located]:
    """All documents of a corpus, file by file in the order of `corpus_files`; InputError when there is none at all."""
    empty = True
    for file in corpus_files(path, storage):
        for located in read_corpus_file(file, storage):
            empty = False
            yield located
    if empty:
        raise InputError("holds no document", file=path)


def read_corpus_file(path: str | Path, storage: Storage | None = None) -> Iterator[Located]:
    """The documents of one file; none where it is empty.

    Shapes, by the name's ending: JSON Lines or a JSON array of objects (also for any other ending); CSV (quoted) and
    TSV (unquoted) whose first line names the columns; TSV of two columns `id<TAB>text` without such a line; Parquet.
    The id is the first present of `DOC_IDS`, the text that of `BODIES`, the title `title`; other fields are ignored.
    InputError: not such a file, no id, an id with blanks, a text that is no string.
    """
    name = str(path).lower().removesuffix(".gz")
    if name.endswith(PARQUET_ENDINGS):
        records = _parquet(path, storage)
    elif name.endswith(".csv"):
        records = _csv(path, storage)
    elif name.endswith(".tsv"):
        records = _tsv(path, storage)
    else:
        records = read_records(path, storage)
    for place, record in records:
        title = as_text(record.get("title"), place.at("title"))
        document = Document(doc_id_of(record, place), title, body_of(record, place) or "")
        yield Located(document, str(path), place.line or 0)


def _is_corpus_name(name: str) -> bool:
    return not name.startswith((".", "_")) and name.lower().removesuffix(".gz").endswith(ENDINGS)


def _csv(path: str | Path, storage: Storage | None) -> Iterator[tuple[Place, Record]]:
    csv.field_size_limit(2**31 - 1)  # the default of 131,072 is shorter than a full text
    rows = csv.reader((text for _, text in read_raw_lines(path, storage)), strict=True)
    header: list[str] = []
    place = Place(path, 1)
    try:
        for row in rows:
            if row and not header:
                header = _header(row, place)
            elif row:
                yield place, _named(header, row, place)
            place = Place(path, rows.line_num + 1)
    except csv.Error as error:
        raise place.error(f"not CSV: {error}") from None


def _tsv(path: str | Path, storage: Storage | None) -> Iterator[tuple[Place, Record]]:
    header: list[str] = []
    for line, text in read_lines(path, storage):
        place, row = Place(path, line), text.split("\t")
        if not header and len(row) == 2 and not set(row) & set(DOC_IDS):
            header = [DOC_IDS[0], BODIES[0]]
        if header:
            yield place, _named(header, row, place)
        else:
            header = _header(row, place)


def _header(row: list[str], place: Place) -> list[str]:
    names = [name.strip() for name in row]
    if not set(names) & set(DOC_IDS):
        raise place.expected(", ".join(names), f"a line that names the columns, one of them {', '.join(DOC_IDS)},")
    return names


def _named(header: list[str], row: list[str], place: Place) -> Record:
    if len(row) != len(header):
        raise place.error(f"{len(row)} columns, {len(header)} expected: {', '.join(header)}")
    return dict(zip(header, row, strict=True))


def _parquet(path: str | Path, storage: Storage | None) -> Iterator[tuple[Place, Record]]:
    number = 0
    with open_binary(path, storage) as stream:
        try:
            file = pq.ParquetFile(cast(Any, stream))
            names = [name for name in file.schema_arrow.names if name in {*DOC_IDS, *BODIES, "title"}]
            for batch in file.iter_batches(PARQUET_BATCH_ROWS, columns=names):
                for record in batch.to_pylist():
                    number += 1
                    yield Place(path, number), record
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"not Parquet: {error}", file=path) from None
