"""That checks go by the clock, whatever the rows do."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest
import ray

from lancer.errors import OutputError
from lancer.pipeline.distributed import reader as module
from lancer.pipeline.distributed.reader import Reader


class Rows:
    """A dataset of a row every few milliseconds, for half a second."""

    def iter_batches(self, **options: Any) -> Iterator[pa.Table]:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            yield pa.table({"shard": ["0"]})
            time.sleep(0.003)


DATASET = cast("ray.data.Dataset", Rows())


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECK_S", 0.05)


def test_checks_are_made_while_rows_come_fast() -> None:
    checked: list[float] = []
    rows = list(Reader().rows(DATASET, [lambda: checked.append(time.monotonic())]))
    assert len(rows) > 20
    assert 3 <= len(checked) <= 10


def test_what_a_check_raises_ends_the_reading() -> None:
    def lost() -> None:
        raise OutputError("another session has taken it over")

    with pytest.raises(OutputError, match="taken it over"):
        list(Reader().rows(DATASET, [lost]))
