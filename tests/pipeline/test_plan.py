from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lancer.config import Config, load_config
from lancer.errors import InputError, LancerError, OutputError, PlanError, UsageError
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.plan import Plan, make_plan, overlapping, shard_of
from lancer.storage import Storage
from tests.pipeline.small import small_config

STAGES = ("retrieve", "decompose", "estimate", "select")


def plan_of(config: Config) -> Plan:
    return make_plan(config, read_inputs(config, Storage()), Storage())


def fingerprints(config: Config) -> dict[str, str]:
    return {s.name: s.fingerprint for s in plan_of(config).stages}


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("select.selectors=[max]", ("select",)),
        ("retrieve.depth=3", ("retrieve", "estimate", "select")),
        ("estimate.with_request=true", ("estimate", "select")),
        ("engines.scorer.max_tokens=64", ("estimate", "select")),
        ("engines.scorer.replicas=2", ()),
        ("ray.workers=1", ()),
        ("shard_queries=1", ()),
    ],
)
def test_a_change_reaches_exactly_what_depends_on_it(tmp_path: Path, override: str, changed: tuple[str, ...]) -> None:
    before = fingerprints(small_config(tmp_path))
    after = fingerprints(small_config(tmp_path, override))
    assert tuple(name for name in STAGES if before[name] != after[name]) == changed


BI_ENCODER = "{method: bi-encoder, engine: scorer%s}"


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        (f"rerank={BI_ENCODER % ''}", ("select",)),
        (f"rerank={BI_ENCODER % ', keep: 3'}", ("estimate", "select")),
        (f"rerank={BI_ENCODER % ', threshold: 0.3'}", ("estimate", "select")),
    ],
)
def test_only_a_narrowing_order_reaches_the_matrix(tmp_path: Path, override: str, changed: tuple[str, ...]) -> None:
    before = fingerprints(small_config(tmp_path))
    after = fingerprints(small_config(tmp_path, override))
    assert tuple(name for name in STAGES if before[name] != after[name]) == changed
    assert tuple(after) == ("retrieve", "rerank.bi-encoder", "decompose", "estimate", "select")


def test_a_changed_step_reaches_the_steps_after_it(tmp_path: Path) -> None:
    steps = ("keep: 5", "keep: 4", "keep: 3")
    mmr = "{method: mmr, engine: scorer, name: %s, %s}"

    def stages(*steps: str) -> dict[str, str]:
        listed = ", ".join(mmr % (f"s{i}", step) for i, step in enumerate(steps))
        return fingerprints(small_config(tmp_path, f"rerank=[{listed}]"))

    before, after = stages(*steps), stages(steps[0], "lambda: 1", steps[2])
    assert [n for n in before if before[n] != after[n]] == ["rerank.s1", "rerank.s2", "estimate", "select"]


def test_a_second_order_needs_reranking(tmp_path: Path) -> None:
    second = "select.selectors=['greedy-coverage(tau=0.5,ties=second)']"
    with pytest.raises(PlanError, match=r"needs second_order, which this run does not make; .* from `rerank`"):
        plan_of(small_config(tmp_path, second))
    plan = plan_of(small_config(tmp_path, second, f"rerank={BI_ENCODER % ''}"))
    assert plan.run_tag == "given:bi-encoder(depth=100):estimate"
    with pytest.raises(PlanError, match="needs token_counts"):
        plan_of(small_config(tmp_path, "select.selectors=['greedy-coverage(tau=0.5,budget=9)']"))


def test_a_changed_sub_question_file_reaches_decompose_and_on_but_not_retrieval(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    before = {s.id: s.keys for s in plan_of(config).shards}
    path = tmp_path / "sub_questions.jsonl"
    path.write_text(path.read_text().replace("first", "second"))
    after = {s.id: s.keys for s in plan_of(config).shards}
    changed = {name for i in before for name in STAGES if before[i][name] != after[i][name]}
    assert changed == {"decompose", "estimate", "select"}


def test_a_changed_request_reaches_its_own_shard_only(tmp_path: Path) -> None:
    config = small_config(tmp_path, "shard_queries=1")
    before = {s.id: s.keys for s in plan_of(config).shards}
    path = tmp_path / "requests.jsonl"
    path.write_text(path.read_text().replace('"what is known of the lake"', '"what is known of the pond"'))
    after = {s.id: s.keys for s in plan_of(config).shards}
    assert sum(before[i] != after[i] for i in before) <= 1


def test_a_changed_corpus_reaches_what_looks_at_text(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    before = fingerprints(config)
    path = tmp_path / "corpus.jsonl"
    path.write_text(path.read_text().replace("deep", "shallow"))
    after = fingerprints(config)
    assert [n for n in STAGES if before[n] != after[n]] == ["retrieve", "estimate", "select"]


def test_shards_are_by_query_id_and_hold_every_query_once(tmp_path: Path) -> None:
    plan = plan_of(small_config(tmp_path, "shard_queries=2"))
    assert plan.shard_bits == 1
    ids = [i for s in plan.shards for i in s.table["query_id"].to_pylist()]
    assert sorted(ids) == sorted(plan.inputs.table["query_id"].to_pylist())
    assert all(shard_of(i, 1) == s.id for s in plan.shards for i in s.table["query_id"].to_pylist())


def test_tau_outside_the_scale_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="tau"):
        plan_of(small_config(tmp_path, "select.selectors=[greedy-coverage(tau=3)]"))


def _edit(path: Path, change: dict[str, Any], line: int = 0) -> None:
    lines = path.read_text().splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | change)
    path.write_text("\n".join(lines) + "\n")


BAD: list[tuple[str, Any, list[str], type[LancerError], str]] = [
    ("missing file", lambda d: (d / "requests.jsonl").unlink(), [], InputError, "requests.jsonl"),
    ("malformed JSON", lambda d: (d / "corpus.jsonl").write_text('{"doc_id": "a"\n'), [], InputError, "corpus.jsonl:1"),
    ("malformed TSV", lambda d: (d / "r.tsv").write_text("q1 no tab\n"), ["requests={d}/r.tsv"], InputError, "r.tsv:1"),
    ("duplicate query", lambda d: _edit(d / "requests.jsonl", {"query_id": "q2"}), [], InputError, "requests.jsonl:2"),
    ("empty request", lambda d: _edit(d / "requests.jsonl", {"text": " "}), [], InputError, "requests.jsonl:1"),
    ("empty corpus", lambda d: (d / "corpus.jsonl").write_text(""), [], InputError, "corpus.jsonl"),
    (
        "no candidate in the corpus",
        lambda d: (d / "first.run").write_text("q1 Q0 x1 1 2.0 t\n"),
        [],
        InputError,
        "first.run: none of its 1 candidates is in",
    ),
    (
        "no shared query",
        lambda d: (d / "first.run").write_text("Q1 Q0 a 1 2.0 t\n"),
        [],
        InputError,
        "first.run: has no query of the requests; e.g. 'Q1' there, 'q1' in the requests",
    ),
    ("no corpus", lambda d: None, ["corpus=null"], UsageError, "key 'corpus' is missing"),
    (
        "unknown model",
        lambda d: None,
        ["engines.scorer.model=embedded:minlm"],
        UsageError,
        "minilm",
    ),
]


@pytest.mark.parametrize(("spoil", "overrides", "kind", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input_is_named_before_anything_starts(
    tmp_path: Path, spoil: Any, overrides: list[str], kind: type[LancerError], message: str
) -> None:
    small_config(tmp_path)
    spoil(tmp_path)
    config = load_config(tmp_path / "config.yaml", [o.format(d=tmp_path) for o in overrides])
    with pytest.raises(kind) as error:
        plan_of(config)
    assert message in str(error.value)


def test_an_unwritable_output_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        Storage().check_writable(str(tmp_path / "file" / "run"))


bit_strings = st.lists(st.text("01", max_size=4).map(lambda bits: bits or "all"), max_size=8, unique=True)


@given(bit_strings, bit_strings)
def test_shards_overlap_when_one_holds_the_other(shards: list[str], others: list[str]) -> None:
    def overlap(one: str, other: str) -> bool:
        return "all" in (one, other) or one.startswith(other) or other.startswith(one)

    expected = {one: {other for other in others if overlap(one, other)} for one in shards}
    found = overlapping(shards, others)
    assert {one: set(of) for one, of in found.items()} == {one: of for one, of in expected.items() if of}
