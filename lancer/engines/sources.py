"""Where the text of documents comes from: a corpus, the requests that bring their candidates along, or an index."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from lancer.engines.documents import DocumentStore, build_store, build_store_from
from lancer.errors import InputError
from lancer.formats.corpora import Document, Located
from lancer.formats.requests import Request, read_requests
from lancer.storage import Storage


@dataclass(frozen=True)
class DocumentSource:
    """`location` is the corpus, the requests file, or the name of the search engine that holds the texts.

    `digest` identifies the content; a store built from it is kept in the cache folder of each machine.
    """

    kind: Literal["corpus", "requests", "index"]
    location: str
    digest: str

    def open(self, storage: Storage) -> DocumentStore:
        """The document store on this machine, built at the first call. Not for kind index.

        InputError: a repeated id with another text, an empty corpus.
        """
        if self.kind == "corpus":
            return DocumentStore(build_store(self.location, storage, self.digest))
        documents = candidate_documents(read_requests(self.location, storage), self.location)
        return DocumentStore(build_store_from(documents, self.digest))


def candidate_documents(requests: list[Request], file: str) -> Iterator[Located]:
    """The documents inside requests, each once; InputError when one id comes with two texts."""
    seen: dict[str, tuple[str, str]] = {}
    for request in requests:
        for candidate in request.candidates or ():
            if candidate.text is None and candidate.title is None:
                continue
            content = (candidate.title or "", candidate.text or "")
            if seen.setdefault(candidate.doc_id, content) != content:
                reason = f"document {candidate.doc_id!r} has another text here than in an earlier request"
                raise InputError(f"query {request.query_id!r}: {reason}", file=file)
            yield Located(Document(candidate.doc_id, *content), file, 0)


def digest_of(texts: list[Located]) -> str:
    """Identifies documents that come inside requests."""
    digest = hashlib.sha256()
    for located in texts:
        for part in (located.document.doc_id, located.document.title or "", located.document.text):
            digest.update(part.encode() + b"\0")
    return digest.hexdigest()
