"""Data sets of the `ir_datasets` package: `ir_datasets:ID` stands for a file wherever requests or qrels are read.

The package is an optional extra and is imported on use only.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lancer.errors import InputError, SetupError

PREFIX: Final = "ir_datasets:"


def dataset_id(path: str | Path) -> str | None:
    """The id in `ir_datasets:neuclir/1/zh/trec-2023`; None for a path."""
    text = str(path)
    return text.removeprefix(PREFIX) if text.startswith(PREFIX) else None


def dataset_queries(name: str) -> Iterator[tuple[str, str]]:
    """(query_id, text) of a data set.

    SetupError: the package is missing. InputError: no such data set, no queries in it, it cannot be fetched.
    """
    dataset = _load(name)
    if not dataset.has_queries():
        raise InputError("this data set has no queries", file=PREFIX + name)
    try:
        for query in dataset.queries_iter():
            yield query.query_id, query.default_text()
    except (RuntimeError, OSError) as error:
        raise _not_fetched(name, error) from None


def dataset_judgments(name: str) -> Iterator[tuple[str, str, str, int]]:
    """(query_id, sub-topic or "0", doc_id, grade) of a data set; errors as in `dataset_queries`."""
    dataset = _load(name)
    if not dataset.has_qrels():
        raise InputError("this data set has no judgments", file=PREFIX + name)
    try:
        for qrel in dataset.qrels_iter():
            yield qrel.query_id, getattr(qrel, "subtopic_id", "0"), qrel.doc_id, qrel.relevance
    except (RuntimeError, OSError) as error:
        raise _not_fetched(name, error) from None


def _load(name: str) -> Any:
    try:
        ir_datasets = importlib.import_module("ir_datasets")
    except ImportError:
        raise SetupError("ir_datasets ids need a package that is missing: pip install 'lancer[datasets]'") from None
    try:
        return ir_datasets.load(name)
    except KeyError:
        raise InputError("no such ir_datasets id", file=PREFIX + name) from None


def _not_fetched(name: str, error: Exception) -> InputError:
    reason = str(error.args[0]) if error.args else type(error).__name__
    return InputError(f"ir_datasets cannot fetch it: {reason}", file=PREFIX + name)
