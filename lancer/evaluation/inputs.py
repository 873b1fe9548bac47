"""What `lancer evaluate` is given, read: run files and run folders, qrels of several files, rating matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lancer.errors import InputError, UsageError
from lancer.evaluation.rated import RatedPairs
from lancer.formats.coverage import FIRST_STAGE, read_stored_matrices
from lancer.formats.qrels import Qrel, read_qrels
from lancer.formats.runs import Run, read_run
from lancer.storage import Storage, join

RUN_ENDINGS: Final = (".trec", ".run", ".trec.gz", ".run.gz")
RESULT: Final = "run.trec"


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


def read_rated_pairs(path: str, run: Run | None = None, storage: Storage | None = None) -> RatedPairs:
    """The matrices of a run folder, its `coverage.parquet`, or a rating file; `run` belongs to a positional one."""
    return RatedPairs.of_matrices(read_stored_matrices(path, run, storage))


def baseline_file(path: str, storage: Storage) -> str | None:
    """The run file that `path` stands for as a baseline; None where there is nothing.

    Of a run folder that is `run.trec`, what the run came to, or the only run file in it. UsageError: several others.
    """
    if storage.exists(path):
        return path
    if not storage.list(path):
        return None
    files = run_files(path, storage)
    result = join(path, RESULT)
    if result in files:
        return result
    if len(files) > 1:
        raise UsageError(f"baseline {path!r} is a folder with several runs; give one of them: {', '.join(files)}")
    return files[0]
