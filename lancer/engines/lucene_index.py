"""Where a Lucene index comes from: built from the document store, or given as a folder, an archive or a prebuilt name.

Whatever had to be built or fetched lies in the cache folder and is made once per machine, under a lock. An index of
ours is Anserini's JsonCollection with title, newline and body as `contents`, which is the text its BEIR "flat" indexes
hold, so published figures can be met.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import logging
import re
import subprocess
import tarfile
import zipfile
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from lancer.engines.cache import building, cache_dir
from lancer.engines.documents import DocumentStore
from lancer.engines.jvm import JAVA_LOCK, anserini_jar, java_home, java_message
from lancer.errors import EngineError, InputError, SetupError, UsageError
from lancer.storage import Storage, is_remote

log = logging.getLogger(__name__)

INDEX_VERSION: Final = 1  # change it with anything below that changes what an index holds
_ARCHIVES: Final = (".tar.gz", ".tgz", ".zip")
_DOCUMENTS_PER_FILE: Final = 50_000  # Anserini gives each thread whole files
_JAVA_BLANKS: Final = "".join(map(chr, range(33)))  # Anserini leaves out documents of nothing else
_TAIL_BYTES: Final = 65_536
_BROKEN: Final = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError)


def build_index(store: DocumentStore, digest: str, *, language: str, vectors: bool, threads: int, heap: str) -> Path:
    """The index of the documents in `store`, whose corpus has this digest; built unless this machine has it.

    `vectors` stores document vectors, which RM3 needs (four times the size on nfcorpus; parsing stored raw documents
    instead would need them stored a second time). Positions are not stored: every query is a bag of words.
    InputError: no document has text. EngineError: Anserini failed.
    """
    folder = _built_folder(digest, language, vectors=vectors)
    with building(folder) as scratch:
        if scratch is not None:
            count = _write_documents(store, scratch / "documents")
            log.info("indexing %d documents into %s", count, folder)
            _index_collection(scratch, count, language=language, vectors=vectors, threads=threads, heap=heap)
            for file in (scratch / "documents").iterdir():
                file.unlink()
    return folder / "index"


def is_built(digest: str, *, language: str, vectors: bool) -> bool:
    """Whether this machine has the index that `build_index` would build."""
    return _built_folder(digest, language, vectors=vectors).is_dir()


def is_here(index: str, storage: Storage) -> bool:
    """Whether `find_index` would neither unpack nor fetch anything."""
    if index.lower().endswith(_ARCHIVES):
        return _archive_folder(index, storage).is_dir()
    return "/" in index or Path(index).exists() or (cache_dir() / "indexes" / f"prebuilt-{index}").is_dir()


def _built_folder(digest: str, language: str, *, vectors: bool) -> Path:
    kind = f"{language}-vectors" if vectors else language
    return cache_dir() / "indexes" / f"{digest[:16]}-{kind}-v{INDEX_VERSION}"


def find_index(index: str, storage: Storage, jnius: Any) -> Path:
    """The folder of a given index: itself, unpacked from an archive, or fetched by Anserini by its prebuilt name.

    InputError: there is no such thing, or no index in it. SetupError: a prebuilt index cannot be fetched.
    """
    if index.lower().endswith(_ARCHIVES):
        return _unpacked(index, storage)
    if is_remote(index):
        raise UsageError(f"index {index!r}: on an object store an index is an archive; allowed: {', '.join(_ARCHIVES)}")
    if "/" in index or Path(index).exists():
        return _index_folder(Path(index), index)
    return _prebuilt(index, jnius)


def index_digest(index: str, storage: Storage) -> str:
    """What identifies a given index without reading it whole, as hex, for fingerprints.

    A folder: SHA-256 of its `segments_N`, which holds the random ids of its segments. An archive: of its size and last
    64 kB, where gzip and zip keep checksums of the content. A prebuilt name: of the name (the jar pins the content).
    """
    if index.lower().endswith(_ARCHIVES):
        with storage.open(index) as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - _TAIL_BYTES))
            return hashlib.sha256(b"%d\n" % size + stream.read()).hexdigest()
    if "/" in index or Path(index).exists():
        newest = max(_index_folder(Path(index), index).glob("segments_*"), key=lambda file: int(file.name[9:], 36))
        return hashlib.sha256(newest.read_bytes()).hexdigest()
    return hashlib.sha256(index.encode()).hexdigest()


def _write_documents(store: DocumentStore, folder: Path) -> int:
    """JSON Lines as Anserini's JsonCollection reads them; returns the number of documents."""
    folder.mkdir()
    count = 0
    with ExitStack() as files:
        for doc_id, text in store.items():
            if not text.strip(_JAVA_BLANKS):
                continue
            if count % _DOCUMENTS_PER_FILE == 0:
                files.close()
                file = files.enter_context(open(folder / f"{count}.jsonl", "w", encoding="utf-8"))
            file.write(json.dumps({"id": doc_id, "contents": text}) + "\n")
            count += 1
    if not count:
        raise InputError("no document of the corpus has text")
    return count


def _index_collection(scratch: Path, count: int, *, language: str, vectors: bool, threads: int, heap: str) -> None:
    """Runs Anserini's indexer in a JVM of its own: its heap goes back, and its log can be kept for the message."""
    command = [str(java_home() / "bin" / "java"), f"-Xmx{heap}", "-cp", str(anserini_jar())]
    command += ["io.anserini.index.IndexCollection", "-collection", "JsonCollection"]
    command += ["-generator", "DefaultLuceneDocumentGenerator", "-language", language, "-threads", str(threads)]
    command += ["-input", str(scratch / "documents"), "-index", str(scratch / "index"), "-optimize"]
    if vectors:
        command.append("-storeDocvectors")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # Anserini ends with 0 whatever happened to single documents or threads; its own count tells.
    found = re.search(r"Total ([\d,]+) documents indexed", done.stdout)
    indexed = int(found[1].replace(",", "")) if found else 0
    if done.returncode or indexed != count:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise EngineError(f"Anserini indexed {indexed} of {count} documents (exit {done.returncode}):\n{tail}")


def _archive_folder(archive: str, storage: Storage) -> Path:
    return cache_dir() / "indexes" / f"archive-{index_digest(archive, storage)[:16]}"


def _unpacked(archive: str, storage: Storage) -> Path:
    folder = _archive_folder(archive, storage)
    with building(folder) as scratch:
        if scratch is not None:
            log.info("unpacking %s into %s", archive, folder)
            with storage.open(archive) as stream:
                try:
                    if archive.lower().endswith(".zip"):
                        with zipfile.ZipFile(stream) as zipped:
                            zipped.extractall(scratch)
                    else:
                        with tarfile.open(fileobj=stream, mode="r|gz") as tar:
                            tar.extractall(scratch, filter="data")
                except _BROKEN as error:
                    raise InputError(f"cannot be unpacked: {error}", file=archive) from error
            _index_folder(scratch, archive, below=True)
    return _index_folder(folder, archive, below=True)


def _index_folder(folder: Path, given: str, *, below: bool = False) -> Path:
    """`folder`, or the one folder below it, that holds a Lucene index."""
    if not folder.is_dir():
        raise InputError("no such index folder", file=given)
    files = folder.rglob("segments_*") if below else folder.glob("segments_*")
    found = sorted({file.parent for file in files})
    if len(found) != 1:
        what = f"{len(found)} Lucene indexes" if found else "no Lucene index (no file segments_N)"
        raise InputError(f"holds {what}, exactly one is expected", file=given)
    return found[0]


def _prebuilt(name: str, jnius: Any) -> Path:
    """Anserini's own list and download, into our cache."""
    with JAVA_LOCK:
        known = {entry.name for entry in jnius.autoclass("io.anserini.index.prebuilt.PrebuiltInvertedIndex").entries()}
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)  # not `nearest`: the list of all is 150 long
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise InputError(f"index {name!r} is neither a folder nor an Anserini prebuilt index{hint}")
    folder = cache_dir() / "indexes" / f"prebuilt-{name}"
    with building(folder) as scratch:
        if scratch is not None:
            try:
                with JAVA_LOCK:
                    jnius.autoclass("io.anserini.util.PrebuiltIndexHandler").get(name).fetch(str(scratch))
            except jnius.JavaException as error:
                remedy = "fetch it where there is a network and give its folder or archive as `index`"
                raise SetupError(
                    f"the prebuilt index {name!r} could not be fetched ({java_message(error)}); {remedy}"
                ) from error
            for archive in scratch.glob("*.tar.gz"):
                archive.unlink()
    return _index_folder(folder, name, below=True)
