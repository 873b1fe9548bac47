"""Requests and judgments by `ir_datasets` id; the package is an optional extra and is imported on use only."""

from __future__ import annotations

import importlib
from typing import Any

from lancer.errors import InputError, SetupError
from lancer.formats.qrels import Qrel
from lancer.formats.requests import Request


def ir_datasets_requests(dataset_id: str) -> list[Request]:
    """The queries of a data set such as `neuclir/1/zh/trec-2023`; SetupError without the package, InputError without
    such a data set or queries in it."""
    dataset = _load(dataset_id)
    if not dataset.has_queries():
        raise InputError("this data set has no queries", file=dataset_id)
    return [Request(query.query_id, query.default_text()) for query in dataset.queries_iter()]


def ir_datasets_qrels(dataset_id: str) -> list[Qrel]:
    """The judgments of a data set, negative ones left out; errors as in `ir_datasets_requests`."""
    dataset = _load(dataset_id)
    if not dataset.has_qrels():
        raise InputError("this data set has no judgments", file=dataset_id)
    return [
        Qrel(
            qrel.query_id,
            getattr(qrel, "subtopic_id", "0"),
            qrel.doc_id,
            qrel.relevance,
        )
        for qrel in dataset.qrels_iter()
        if qrel.relevance >= 0
    ]


def _load(dataset_id: str) -> Any:
    try:
        ir_datasets = importlib.import_module("ir_datasets")
    except ImportError:
        raise SetupError("ir_datasets ids need a package that is missing: pip install ir_datasets") from None
    try:
        return ir_datasets.load(dataset_id)
    except KeyError:
        raise InputError("no such ir_datasets id", file=dataset_id) from None
