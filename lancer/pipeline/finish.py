"""The end of a run: run files from the shards' rankings, one shard in memory at a time, and what is stale removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow.compute as pc

from lancer import schema
from lancer.errors import DamagedError
from lancer.formats.runs import write_run
from lancer.pipeline.plan import Plan, Shard, digest
from lancer.pipeline.store import STAGE_TABLES, TABLES, RunStore, tables_of

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


def write_run_files(plan: Plan, store: RunStore) -> list[str]:
    """Writes the run files, shard by shard, in the requests' order inside a shard; returns their names.

    `run.trec` is the first selector's ranking, `run.<selector>.trec` those of further ones; `run.<name>.trec` is what a
    step of reranking kept, in its order.
    """
    files = [FIRST_STAGE]
    write_run(store.uri(FIRST_STAGE), _rankings(plan, store, None), plan.first_tag, store.storage)
    for step, tag in zip(plan.config.rerank, plan.step_tags, strict=True):
        files.append(f"run.{step.order_name}.trec")
        kept = _rankings(plan, store, f"{schema.RERANK}.{step.order_name}", kept=True)
        write_run(store.uri(files[-1]), kept, tag, store.storage)
    for i, selector in enumerate(plan.selectors):
        tag = plan.run_tag if plan.config.select is None else f"{plan.run_tag}:{selector}"
        files.append("run.trec" if i == 0 else f"run.{selector}.trec")
        write_run(store.uri(files[-1]), _rankings(plan, store, selector), tag, store.storage)
    return files


def _rankings(
    plan: Plan, store: RunStore, selector: str | None, *, kept: bool = False
) -> Iterator[tuple[str, Sequence[str]]]:
    """(query_id, doc_ids) of one selector, or only what was kept; of the first stage when it is None."""
    there = store.by_key(store.uri("ranking.parquet"))
    for shard in plan.shards:
        uri = there[store.uri("ranking.parquet", final_name(plan, shard))]
        table = store.read_table(uri, schema.RANKING_SCHEMA)
        if not set(table["query_id"].to_pylist()) <= set(shard.table["query_id"].to_pylist()):
            raise DamagedError(uri, "it holds other queries")
        rows = table.filter(pc.equal(table["selector"], selector or plan.selectors[0]))
        if kept:
            rows = rows.filter(rows["kept"])
        order = "rank" if selector else "first_stage_rank"
        by_query: dict[str, list[tuple[int, str]]] = {}
        for query_id, doc_id, rank in zip(
            rows["query_id"].to_pylist(), rows["doc_id"].to_pylist(), rows[order].to_pylist(), strict=True
        ):
            by_query.setdefault(query_id, []).append((rank, doc_id))
        for query_id, documents in by_query.items():
            yield query_id, [doc_id for _, doc_id in sorted(documents)]
