"""The one way text files are read: every other module of `lancer.formats` sits on these functions.

Accepted everywhere: local paths and `s3://` URIs, gzip (by its magic number, not by name), a UTF-8 byte order mark at
the start of any line (files were put together), CRLF. Lines end at line feeds only, so that U+2028 and the like stay
inside a text. What is wrong is an `InputError` that names the file and the line.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

from lancer.errors import InputError
from lancer.storage import Storage

BOM: Final = b"\xef\xbb\xbf"
GZIP_MAGIC: Final = b"\x1f\x8b"
JSON_ENDINGS: Final = (".json", ".jsonl", ".ndjson")


@contextmanager
def open_binary(path: str | Path, storage: Storage | None = None) -> Iterator[BinaryIO]:
    """The bytes of a file, seekable, decompressed when they are gzip; InputError when it is missing or a folder."""
    with (storage or Storage()).open(str(path)) as stored:
        magic = stored.read(len(GZIP_MAGIC))
        stored.seek(0)
        if magic != GZIP_MAGIC:
            yield stored
            return
        with gzip.GzipFile(fileobj=stored) as unpacked:
            yield cast(BinaryIO, unpacked)


def read_raw_lines(path: str | Path, storage: Storage | None = None) -> Iterator[tuple[int, str]]:
    """All lines with their ends, numbered from 1, blank ones included: for readers of quoted CSV."""
    number = 0
    with open_binary(path, storage) as stream:
        try:
            for number, line in enumerate(stream, 1):
                yield number, line.removeprefix(BOM).decode("utf-8")
        except UnicodeDecodeError as error:
            reason = f"not UTF-8: byte 0x{error.object[error.start]:02x} at position {error.start + 1} of the line"
            raise InputError(reason, file=path, line=number) from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"damaged gzip: {error}", file=path, line=number + 1) from None


def read_lines(path: str | Path, storage: Storage | None = None) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, without their ends, each with its number from 1."""
    for number, line in read_raw_lines(path, storage):
        if line and not line.isspace():
            yield number, line.rstrip("\r\n")


def is_json(path: str | Path, storage: Storage | None = None) -> bool:
    """Whether a file that may be JSON or tab-separated is JSON: by its name, else by its first character."""
    name = str(path).lower().removesuffix(".gz")
    if name.endswith((*JSON_ENDINGS, ".tsv")):
        return not name.endswith(".tsv")
    _, first = next(read_lines(path, storage), (0, ""))
    return first.lstrip()[:1] in ("{", "[")
