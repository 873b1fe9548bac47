"""A run that a server rates, whose faults a test decides."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lancer.config import Config
from tests.http_servers import Reply, Request, completion
from tests.pipeline.small import REQUESTS, small_config


class Rater:
    """Answers judge prompts with a rating by their hash, or with what `fault` says; counts what it was asked."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.fault: Callable[[Request], Reply | None] = lambda request: None
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        with self._lock:
            self.asked[request.prompt] += 1
        usage = {"prompt_tokens": 40, "completion_tokens": 1}
        rating = str(hashlib.sha256(request.prompt.encode()).digest()[0] % 6)
        return self.fault(request) or completion(rating, usage=usage)

    @property
    def queries(self) -> Counter[str]:
        """How many prompts of each query."""
        return Counter(q for prompt in self.asked.elements() for q, (text, _) in REQUESTS.items() if text in prompt)


@dataclass
class Served:
    """A run with given sub-questions that a server rates."""

    folder: Path
    rater: Rater
    base_url: str

    def config(self, *overrides: str) -> Config:
        return small_config(
            self.folder,
            "estimate=null",
            "judge={engine: llm}",
            f"engines={{llm: {{kind: http, base_url: '{self.base_url}', model: rater, retries: 0, concurrency: 4}}}}",
            "select.selectors=[sum(tau=1)]",
            *overrides,
        )

    def coverage(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.folder / "run" / "coverage.parquet").to_pylist()
        return rows

    def failures(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = pq.read_table(self.folder / "run" / "failures.parquet").to_pylist()
        return rows
