"""How often the work on a shard was begun and not ended: what a worker that dies leaves behind.

    attempts/<shard>.json    {"starts": 3, "rows": {"judge": {"q2": 1}}}

Once the rows of a shard together have killed `limits.attempts` workers they go one by one, each written down before it
begins, and one that has killed as many workers by itself is set aside. The file goes when the shard is finished. A
session begins without such files: when a whole run is killed nobody is to blame, so only workers that die under a
driver that lives count.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from lancer.errors import EngineError, InputError
from lancer.storage import Storage, join

FOLDER: Final = "attempts"


def clear(storage: Storage, root: str) -> None:
    """Removes what other sessions left, or this one where it ended early."""
    for entry in storage.list(join(root, FOLDER)):
        storage.delete(entry.uri)


def begun(storage: Storage, root: str) -> list[str]:
    """The shards that are in work, ascending."""
    names = (entry.uri.rsplit("/", 1)[-1] for entry in storage.list(join(root, FOLDER)))
    return [name.removesuffix(".json") for name in names]


def end(storage: Storage, root: str, shard: str) -> None:
    """The shard is finished. For the driver: a worker may have to do again what the driver has not heard of."""
    storage.delete(_uri(root, shard))


def _uri(root: str, shard: str) -> str:
    return join(root, FOLDER, f"{shard}.json")


@dataclass
class Attempts:
    """Of one shard; `limit` is how many workers something may kill."""

    storage: Storage
    uri: str
    limit: int
    starts: int = 0
    rows: dict[str, dict[str, int]] = field(default_factory=dict)  # stage → query → starts without an end
    _running: tuple[str, str] | None = None

    @classmethod
    def of(cls, storage: Storage, root: str, shard: str, limit: int, *, starts: int | None = None) -> Attempts:
        """What is known of a shard; its file is not read where `starts`, when known, says that there is no more."""
        attempts = cls(storage, _uri(root, shard), limit, starts or 0)
        if starts is None or attempts.one_by_one:
            with suppress(InputError):  # a first start
                found = json.loads(storage.read(attempts.uri))
                attempts.starts, attempts.rows = found["starts"], found["rows"]
        return attempts

    @property
    def one_by_one(self) -> bool:
        """Whether the rows have to go one by one: one of them may be what kills workers."""
        return self.starts > self.limit

    def begin(self) -> None:
        """The shard's work begins."""
        self.starts += 1
        self._write()

    def begin_row(self, stage: str, query_id: str) -> bool:
        """A stage begins with one row, and has ended with the one before; False when the row is to be set aside.

        EngineError: it killed as many workers again when it was set aside.
        """
        if self._running:
            before, other = self._running
            del self.rows[before][other]
        of_stage = self.rows.setdefault(stage, {})
        deaths = of_stage.get(query_id, 0)
        if deaths >= 2 * self.limit:
            raise EngineError(
                f"query {query_id!r} killed its worker in stage {stage!r} {self.limit} times, and as often without any "
                "engine; take it out of the requests"
            )
        of_stage[query_id] = deaths + 1
        self._running = (stage, query_id)
        self._write()
        return deaths < self.limit

    def _write(self) -> None:
        self.storage.write(self.uri, json.dumps({"starts": self.starts, "rows": self.rows}).encode())
