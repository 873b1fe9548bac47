"""The end of a run: run files from the shards' rankings, one shard in memory at a time, and what is stale removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow.compute as pc

from lancer import schema
from lancer.formats.runs import write_run
from lancer.pipeline.plan import Plan, Shard, digest
from lancer.pipeline.store import TABLES, RunStore

FIRST_STAGE = "first_stage.trec"


def final_name(plan: Plan, shard: Shard) -> str:
    """The file name of a shard's part in every final table: by the keys of all stages, so that a stale one is seen."""
    key = digest([plan.run_tag, [shard.keys[s.name] for s in plan.stages]])[:24]
    return f"shard-{shard.id}-{key}.parquet"


def finished(plan: Plan, store: RunStore) -> frozenset[str]:
    """Shards whose final tables are all there."""
    there = {table: {e.uri for e in store.storage.list(store.uri(table))} for table in TABLES}
    return frozenset(s.id for s in plan.shards if all(store.uri(t, final_name(plan, s)) in there[t] for t in TABLES))


def remove_stale(plan: Plan, store: RunStore) -> None:
    """Removes parts of final tables that belong to earlier settings. Stage parts stay: going back costs nothing."""
    names = {final_name(plan, shard) for shard in plan.shards}
    for table in TABLES:
        for entry in store.storage.list(store.uri(table)):
            if entry.uri.rsplit("/", 1)[-1] not in names:
                store.storage.delete(entry.uri)


def write_run_files(plan: Plan, store: RunStore) -> dict[str, str]:
    """Writes the run files, shard by shard, in the requests' order inside a shard; returns tag → file name.

    `run.trec` is the first selector's ranking, `run.<selector>.trec` those of further ones.
    """
    first_tag = plan.run_tag.split(":")[0]
    files = {first_tag: FIRST_STAGE}
    write_run(store.uri(FIRST_STAGE), _rankings(plan, store, None), first_tag, store.storage)
    for i, selector in enumerate(plan.selectors):
        tag = first_tag if selector == schema.FIRST_STAGE else f"{plan.run_tag}:{selector}"
        name = "run.trec" if i == 0 else f"run.{selector}.trec"
        write_run(store.uri(name), _rankings(plan, store, selector), tag, store.storage)
        files[tag] = name
    return files


def _rankings(plan: Plan, store: RunStore, selector: str | None) -> Iterator[tuple[str, Sequence[str]]]:
    """(query_id, doc_ids) of one selector; of the first stage when it is None."""
    for shard in plan.shards:
        table = store.read_table(store.uri("ranking.parquet", final_name(plan, shard)), schema.RANKING_SCHEMA)
        rows = table.filter(pc.equal(table["selector"], selector or plan.selectors[0]))
        order = "rank" if selector else "first_stage_rank"
        by_query: dict[str, list[tuple[int, str]]] = {}
        for query_id, doc_id, rank in zip(
            rows["query_id"].to_pylist(), rows["doc_id"].to_pylist(), rows[order].to_pylist(), strict=True
        ):
            by_query.setdefault(query_id, []).append((rank, doc_id))
        for query_id, documents in by_query.items():
            yield query_id, [doc_id for _, doc_id in sorted(documents)]
