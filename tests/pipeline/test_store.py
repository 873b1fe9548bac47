from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lancer import schema
from lancer.errors import DamagedError, OutputError
from lancer.pipeline.finish import final_name, remove_stale
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.plan import Plan, make_plan
from lancer.pipeline.resume import find_work
from lancer.pipeline.store import OURS, STAGE_TABLES, TABLES, RunStore, part_schema, part_table, tables_of
from lancer.stages.base import StageOutput
from lancer.stages.records import Failure, LedgerRecord
from lancer.storage import Storage
from tests.pipeline.small import small_config


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    config = small_config(tmp_path)
    return make_plan(config, read_inputs(config, Storage()), Storage())


def test_a_part_holds_columns_ledger_and_failures_and_is_found_again(tmp_path: Path, plan: Plan) -> None:
    store, stage, shard = RunStore(Storage(), str(tmp_path / "run")), plan.stages[0], plan.shards[0]
    ids = shard.table["query_id"].to_pylist()
    columns = pa.Table.from_pylist(
        [{"query_id": i, "candidates": []} for i in ids], schema=pa.schema([schema.QUERY_ID, schema.CANDIDATES])
    )
    output = StageOutput(
        {},
        [LedgerRecord(query_id=i, stage="retrieve") for i in ids],
        [Failure(query_id=ids[0], stage="retrieve", reason="no_candidates", detail="none")],
    )
    assert not store.parts(plan.stages, plan.shards)
    uri = store.write_table(store.part(stage, shard), part_table(stage, columns, output))
    assert store.parts(plan.stages, plan.shards) == {("retrieve", shard.id): uri}
    read = store.read_part(uri, stage)
    assert read.schema == part_schema(stage)
    assert [len(f) for f in read["failures"].to_pylist()] == [1] + [0] * (len(ids) - 1)
    assert [r[0]["query_id"] for r in read["ledger"].to_pylist()] == ids


def test_the_same_table_gives_the_same_bytes(tmp_path: Path) -> None:
    store = RunStore(Storage(), str(tmp_path))
    table = pa.table({"a": ["x", None], "b": [1.5, 2.5]})
    one, two = store.write_table(store.uri("one"), table), store.write_table(store.uri("two"), table)
    assert Path(one).read_bytes() == Path(two).read_bytes()
    assert one.removeprefix(store.uri("one")) == two.removeprefix(store.uri("two"))


def test_what_is_no_part_is_named(tmp_path: Path, plan: Plan) -> None:
    store = RunStore(Storage(), str(tmp_path))
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(OutputError, match=r"torn\.parquet is damaged"):
        store.read_part(store.uri("torn.parquet"), plan.stages[0])
    other = store.write_table(store.uri("other"), pa.table({"a": [1]}))
    with pytest.raises(OutputError, match="is damaged: it has another schema"):
        store.read_part(other, plan.stages[0])


def test_a_flipped_bit_is_seen(tmp_path: Path, plan: Plan) -> None:
    store, stage = RunStore(Storage(), str(tmp_path)), plan.stages[0]
    columns = pa.Table.from_pylist(
        [{"query_id": "q", "candidates": [{"doc_id": f"d{i}", "score": i / 7, "has_text": True} for i in range(50)]}],
        schema=pa.schema([schema.QUERY_ID, schema.CANDIDATES]),
    )
    part = Path(store.write_table(store.uri("part"), part_table(stage, columns, StageOutput({}))))
    whole = part.read_bytes()
    for at in range(0, len(whole), 97):
        part.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DamagedError):
            store.read_part(str(part), stage)
    part.write_bytes(whole)
    assert store.read_part(str(part), stage).num_rows == 1


def test_clearing_removes_a_run_and_nothing_else(tmp_path: Path) -> None:
    store = RunStore(Storage(), str(tmp_path))
    for name in ("run.json", "run.trec", "parts/retrieve-x/shard-00000-k.parquet", "ranking.parquet/shard-0.parquet"):
        store.storage.write(store.uri(name), b"x")
    store.storage.write(store.uri("notes.txt"), b"mine")
    store.storage.write(store.uri("old", "old.trec"), b"mine")
    store.storage.write(store.uri("old", ".lancer-tmp-1"), b"mine")
    for name in (".lancer-tmp-2", "calls/llm/.lancer-tmp-3"):  # of a process that was killed while it wrote
        store.storage.write(store.uri(name), b"x")
    store.clear()
    left = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file())
    assert left == ["notes.txt", "old/.lancer-tmp-1", "old/old.trec"]


def test_a_table_of_a_stage_belongs_to_runs_that_have_it(tmp_path: Path, plan: Plan) -> None:
    assert tables_of(plan.stages) == TABLES
    config = small_config(tmp_path, "compress={depth: 3}")
    with_compression = make_plan(config, read_inputs(config, Storage()), Storage())
    assert tables_of(with_compression.stages) == (*TABLES, "compressed.parquet")
    assert set(STAGE_TABLES.values()) <= set(OURS), "they are removed with --overwrite"
    assert [s.fingerprint for s in with_compression.stages[:-1]] == [s.fingerprint for s in plan.stages]


def test_a_shard_is_unfinished_without_the_table_of_its_last_stage(tmp_path: Path) -> None:
    config = small_config(tmp_path, "compress={depth: 3}")
    plan = make_plan(config, read_inputs(config, Storage()), Storage())
    store, shard = RunStore(Storage(), str(tmp_path / "run")), plan.shards[0]
    for stage in plan.stages:
        store.write_table(store.part(stage, shard), part_schema(stage).empty_table())
    for table in TABLES:
        store.write_table(store.uri(table, final_name(plan, shard)), schema.LEDGER_SCHEMA.empty_table())
    assert shard in find_work(plan, store).todo
    store.write_table(store.uri("compressed.parquet", final_name(plan, shard)), schema.COMPRESSED_SCHEMA.empty_table())
    assert shard not in find_work(plan, store).todo


def test_the_table_of_a_stage_that_a_run_no_longer_has_is_removed(tmp_path: Path, plan: Plan) -> None:
    store, shard = RunStore(Storage(), str(tmp_path / "run")), plan.shards[0]
    kept = store.write_table(store.uri("ranking.parquet", final_name(plan, shard)), schema.RANKING_SCHEMA.empty_table())
    stale = store.write_table(store.uri("compressed.parquet", "shard-x"), schema.COMPRESSED_SCHEMA.empty_table())
    remove_stale(plan, store)
    assert store.storage.exists(kept)
    assert not store.storage.exists(stale)
