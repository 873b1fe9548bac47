"""What `lancer evaluate` is given, read: run files and run folders, qrels of several files, rating matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from lancer.errors import InputError, UsageError
from lancer.formats.qrels import Qrel, read_qrels
from lancer.formats.ratings import read_ratings
from lancer.formats.runs import Run, read_run
from lancer.storage import Storage, join

RUN_ENDINGS: Final = (".trec", ".run", ".trec.gz", ".run.gz")
FIRST_STAGE: Final = "first_stage.trec"
COVERAGE: Final = "coverage.parquet"


def read_runs(paths: Sequence[str], storage: Storage | None = None) -> dict[str, tuple[str, Run]]:
    """Name -> (path, run). A folder stands for the run files in it, the first stage first.

    A run's name is its tag; runs that share a tag are named by their paths. UsageError: a run given twice. InputError:
    a folder without a run file.
    """
    storage = storage or Storage()
    files = [file for path in paths for file in run_files(path, storage)]
    twice = next((file for file in files if files.count(file) > 1), None)
    if twice is not None:
        raise UsageError(f"the run {twice} is given twice")
    runs = [(file, read_run(file, storage)) for file in files]
    tags = [run.tag for _, run in runs]
    return {run.tag if tags.count(run.tag) == 1 else file: (file, run) for file, run in runs}


def run_files(path: str, storage: Storage) -> list[str]:
    """The run files `path` stands for: itself, or, for a folder, those directly in it."""
    if storage.exists(path):
        return [path]
    below = [entry.uri for entry in storage.list(path)]
    if not below:
        raise InputError("no such file or folder", file=path)
    names = [uri.rsplit("/", 1)[1] for uri in below]
    found = [uri for uri, name in zip(below, names, strict=True) if name.endswith(RUN_ENDINGS)]
    found = [uri for uri in found if uri == join(path, uri.rsplit("/", 1)[1])]
    if not found:
        raise InputError(f"is a folder without a run file ({', '.join(RUN_ENDINGS)})", file=path)
    return sorted(found, key=lambda uri: (not uri.endswith(f"/{FIRST_STAGE}"), uri))


def read_all_qrels(paths: Sequence[str], storage: Storage | None = None) -> list[Qrel]:
    """The judgments of all files together. InputError: two files judge the same differently."""
    seen: dict[tuple[str, str, str], tuple[int, str]] = {}
    for path in paths:
        for query_id, sub_topic, doc_id, grade in read_qrels(path, storage):
            earlier, where = seen.setdefault((query_id, sub_topic, doc_id), (grade, path))
            if earlier != grade:
                what = f"query {query_id!r}, sub-topic {sub_topic!r}, document {doc_id!r}"
                raise InputError(f"{what}: grade {grade} here, {earlier} in {where}", file=path)
    return [Qrel(*key, grade) for key, (grade, _) in seen.items()]


def read_rating_qrels(path: str, run: Run | None = None, storage: Storage | None = None) -> list[Qrel]:
    """A rating matrix as judgments, one per cell: grade = rating, -1 where it is not known.

    `path`: a run folder, its `coverage.parquet`, or a file that `lancer.formats.ratings` reads; `run` belongs to a
    positional one.
    """
    storage = storage or Storage()
    if not storage.exists(path):
        parts = [entry.uri for entry in storage.list(path) if entry.uri.endswith(".parquet")]
        inside = [uri for uri in parts if uri.startswith(join(path, COVERAGE))]
        parts = inside or (parts if path.rstrip("/").endswith(COVERAGE) else [])
        if not parts:
            raise InputError(f"no such file, nor a folder with a {COVERAGE}", file=path)
        return [qrel for uri in parts for qrel in _coverage_part(uri, storage)]
    if path.endswith(".parquet"):
        return list(_coverage_part(path, storage))
    return [
        Qrel(query_id, sub_question_id, doc_id, -1 if rating is None else rating)
        for query_id, matrix in read_ratings(path, run, storage).items()
        for doc_id, row in zip(matrix.doc_ids, matrix.ratings, strict=True)
        for sub_question_id, rating in zip(matrix.sub_question_ids, row, strict=True)
    ]


def _coverage_part(uri: str, storage: Storage) -> Iterator[Qrel]:
    columns = ["query_id", "sub_question_id", "doc_id", "rating"]
    with storage.open(uri) as stream:
        try:
            file = pq.ParquetFile(stream)
        except pa.ArrowInvalid as error:
            raise InputError(f"is no Parquet file: {error}", file=uri) from error
        missing = [name for name in columns if name not in file.schema_arrow.names]
        if missing:
            raise InputError(f"is no coverage table: it lacks {', '.join(missing)}", file=uri)
        table = file.read(columns=columns)
    for query_id, sub_question_id, doc_id, rating in zip(*(table[name].to_pylist() for name in columns), strict=True):
        yield Qrel(query_id, sub_question_id, doc_id, -1 if rating is None else rating)
