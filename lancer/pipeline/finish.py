"""The end of a run: run files from the shards' rankings, a few shards in memory at a time; all final tables are
checked, and what is stale is removed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lancer import schema
from lancer.digests import digest
from lancer.errors import DamagedError
from lancer.formats.runs import run_writer
from lancer.pipeline.plan import Plan, Shard
from lancer.pipeline.store import RANKING, STAGE_TABLES, TABLES, RunStore, in_order, tables_of

FIRST_STAGE = "first_stage.trec"


def final_name(plan: Plan, shard: Shard) -> str:
    """The name of a shard's part in every final table, up to its digest: by the keys of all stages."""
    key = digest([plan.run_tag, [shard.keys[s.name] for s in plan.stages]])[:24]
    return f"shard-{shard.id}-{key}"


def final_parts(plan: Plan, store: RunStore) -> dict[str, list[str]]:
    """Shard → its files in the final tables, as many as are there; one listing per table."""
    found: dict[str, list[str]] = {shard.id: [] for shard in plan.shards}
    for table in tables_of(plan.stages):
        there = store.by_key(store.uri(table))
        for shard in plan.shards:
            uri = there.get(store.uri(table, final_name(plan, shard)))
            if uri is not None:
                found[shard.id].append(uri)
    return found


def remove_stale(plan: Plan, store: RunStore) -> None:
    """Removes what is not of this plan from the final tables. Stage parts stay: going back costs nothing."""
    kept = {uri for files in final_parts(plan, store).values() for uri in files}
    for table in (*TABLES, *STAGE_TABLES.values()):
        for entry in store.storage.list(store.uri(table)):
            if entry.uri not in kept:
                store.storage.delete(entry.uri)


def write_run_files(plan: Plan, store: RunStore, before_commit: Callable[[], None] = lambda: None) -> list[str]:
    """Writes the run files, shard by shard, in the requests' order inside a shard; returns their names.

    `run.trec` is the first selector's ranking, `run.<selector>.trec` those of further ones; `run.<name>.trec` is what a
    step of reranking kept, in its order. On the way each file of the final tables is read and compared with the digest
    in its name: nothing else looks at most of them. A step that kept nothing of any query has no file: a run without a
    line is none. What `before_commit` raises leaves the old run files. DamagedError: some are not what was written;
    they are removed, so that they are made again.
    """
    runs = list(_runs(plan))
    there = final_parts(plan, store)
    damaged: list[DamagedError] = []
    kept: set[str] = set()
    with contextlib.ExitStack() as stack:
        write = [stack.enter_context(run_writer(store.uri(run.name), run.tag, store.storage)) for run in runs]
        for ranking, found in in_order(lambda shard: _checked(shard, there[shard.id], store), plan.shards):
            damaged += found
            if ranking is not None:
                for run, write_one in zip(runs, write, strict=True):
                    for query_id, doc_ids in run.rankings(ranking):
                        write_one(query_id, doc_ids)
                        kept.add(run.name)
        if damaged:
            for error in damaged:
                store.storage.delete(error.uri)
            others = f"; so are {len(damaged) - 1} other files" if damaged[1:] else ""
            raise DamagedError(damaged[0].uri, damaged[0].reason + others)
        before_commit()
    empty = [run.name for run in runs if run.only_kept and run.name not in kept]
    for name in empty:
        store.storage.delete(store.uri(name))
    return [run.name for run in runs if run.name not in empty]


@dataclass(frozen=True)
class _Run:
    """A run file, and the rows of the table of rankings that it holds, in the order of `rank`."""

    name: str
    tag: str
    selector: str
    rank: str = "rank"
    only_kept: bool = False

    def rankings(self, table: pa.Table) -> Iterator[tuple[str, list[str]]]:
        """(query_id, doc_ids) of one shard."""
        rows = table.filter(pc.equal(table["selector"], self.selector))
        if self.only_kept:
            rows = rows.filter(rows["kept"])
        by_query: dict[str, list[tuple[int, str]]] = {}
        columns = ("query_id", "doc_id", self.rank)
        for query_id, doc_id, rank in zip(*(rows[name].to_pylist() for name in columns), strict=True):
            by_query.setdefault(query_id, []).append((rank, doc_id))
        for query_id, documents in by_query.items():
            yield query_id, [doc_id for _, doc_id in sorted(documents)]


def _runs(plan: Plan) -> Iterator[_Run]:
    yield _Run(FIRST_STAGE, plan.first_tag, plan.selectors[0], rank="first_stage_rank")
    for step, tag in zip(plan.config.rerank, plan.step_tags, strict=True):
        yield _Run(f"run.{step.order_name}.trec", tag, f"{schema.RERANK}.{step.order_name}", only_kept=True)
    for i, selector in enumerate(plan.selectors):
        tag = plan.run_tag if plan.config.select is None else f"{plan.run_tag}:{selector}"
        yield _Run("run.trec" if i == 0 else f"run.{selector}.trec", tag, selector)


def _checked(shard: Shard, uris: Sequence[str], store: RunStore) -> tuple[pa.Table | None, list[DamagedError]]:
    """The shard's rankings, unless they are damaged, and which of its files are."""
    ranking: pa.Table | None = None
    damaged: list[DamagedError] = []
    for uri in uris:
        try:
            if uri.rsplit("/", 2)[-2] != RANKING:
                store.read_checked(uri)
                continue
            table = store.read_table(uri, schema.RANKING_SCHEMA)
            if not set(table["query_id"].to_pylist()) <= set(shard.table["query_id"].to_pylist()):
                raise DamagedError(uri, "it holds other queries")
            ranking = table
        except DamagedError as error:
            damaged.append(error)
    return ranking, damaged
