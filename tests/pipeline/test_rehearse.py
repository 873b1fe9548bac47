"""What the stages would ask, counted on a few queries without any model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from lancer.config import Config
from lancer.engines.table import build_engine
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.plan import Plan, make_plan
from lancer.pipeline.rehearse import Rehearsal, draw, rehearse
from lancer.stages.records import LedgerRecord
from lancer.storage import Storage
from tests.pipeline.judged import judged_config
from tests.pipeline.small import DOCUMENTS, REQUESTS, small_config

LLM = 'engines={llm: {kind: vllm, model: "embedded:smollm2", max_model_len: 2048}}'


def plan_of(config: Config) -> Plan:
    storage = Storage()
    return make_plan(config, read_inputs(config, storage), storage)


def rehearsed(config: Config, sample: int = 4, sub_questions: Iterable[str] = ()) -> Rehearsal:
    return rehearse(plan_of(config), Storage(), sample=sample, sub_questions=tuple(sub_questions))


def calls(records: Iterable[LedgerRecord]) -> Counter[str]:
    found: Counter[str] = Counter()
    for record in records:
        found[record.stage] += record.calls
    return found


def test_a_larger_sample_holds_the_smaller_one_whatever_the_order_of_the_queries() -> None:
    ids = [f"q{i}" for i in range(100)]
    assert set(draw(ids, 5)) < set(draw(ids[::-1], 9))
    assert draw(ids, 5) != draw(sorted(ids), 100)[95:]
    assert draw(ids[:3], 9) == draw(ids[:3], 3)


def test_every_pair_of_the_sampled_queries_is_asked_for(tmp_path: Path) -> None:
    found = rehearsed(judged_config(tmp_path, LLM), sample=2)
    assert (len(found.queries), found.total) == (2, len(REQUESTS))
    assert {r.query_id for r in found.records} == set(found.queries)
    judge = 2 * 2 * len(DOCUMENTS)
    assert calls(found.records) == Counter({"decompose": 2, "judge": judge, "retrieve": 0, "select": 0})
    judged = [r for r in found.records if r.stage == "judge"]
    assert all(r.prompt_tokens > r.cached_tokens > 0 and r.output_tokens == r.calls == r.pairs for r in judged)
    assert not found.refused
    assert any("2 sub-questions per query, as long as those of the prompt's examples" in a for a in found.assumptions)
    assert any("2 of 4 queries" in a for a in found.assumptions)


@pytest.mark.parametrize("n", [1, 10, 50])
def test_as_many_sub_questions_as_are_asked_for_at_the_first_attempt(tmp_path: Path, n: int) -> None:
    llm = LLM.replace("2048", "4096")
    found = rehearsed(judged_config(tmp_path, llm, f"decompose.n={n}", "decompose.max_tokens=2000"), sample=1)
    assert calls(found.records)["decompose"] == 1
    assert calls(found.records)["judge"] == n * len(DOCUMENTS)


def test_typical_sub_questions_take_the_place_of_the_examples(tmp_path: Path) -> None:
    config = judged_config(tmp_path, LLM)
    short, long = (
        sum(r.output_tokens for r in rehearsed(config, 1, of).records if r.stage == "decompose")
        for of in (
            ["How deep is it?", "Who built it?"],
            ["What did the council decide on the bridge in 1820?"],
        )
    )
    assert 10 < short < long < 60


def test_a_free_answer_is_read_at_the_first_attempt(tmp_path: Path) -> None:
    found = rehearsed(judged_config(tmp_path, LLM, "judge.structured=false"), sample=1)
    assert calls(found.records)["judge"] == 2 * len(DOCUMENTS)
    assert any(a.startswith("judge: an answer of free form is one digit") for a in found.assumptions)


def test_a_prompt_that_does_not_fit_is_told(tmp_path: Path) -> None:
    found = rehearsed(judged_config(tmp_path, LLM.replace("2048", "320")), sample=4)
    assert found.refused == {"decompose": 4 * 3}, "each of three attempts"


def test_a_synthetic_engine_is_asked_itself(tmp_path: Path) -> None:
    config = judged_config(tmp_path)
    found = rehearsed(config)
    plan = plan_of(config)
    engine = build_engine(config.engines["llm"], plan.source, Storage())
    assert sum(r.calls for r in found.records) == 4 + 4 * 2 * len(DOCUMENTS)
    assert engine.clock().calls == 0
    assert all(r.cached_tokens == 0 for r in found.records)


def test_a_scorer_counts_pairs_and_tokens_without_its_model(tmp_path: Path) -> None:
    found = rehearsed(small_config(tmp_path))
    estimated = [r for r in found.records if r.stage == "estimate"]
    assert sum(r.pairs for r in estimated) == sum(len(q) for _, q in REQUESTS.values()) * len(DOCUMENTS)
    assert all(r.prompt_tokens > 60 for r in estimated)


def test_what_hangs_on_scores_is_told_as_a_guess(tmp_path: Path) -> None:
    threshold = "rerank={method: bi-encoder, engine: scorer, threshold: 0.3}"
    found = rehearsed(small_config(tmp_path, threshold), sample=1)
    assert any("reach the threshold 0.3 is a guess" in a for a in found.assumptions)
    assert not any("is a guess" in a for a in rehearsed(small_config(tmp_path), sample=1).assumptions)
    cascade = (
        "estimate={engine: scorer}",
        'engines={llm: {kind: synthetic, questions: 2}, scorer: {kind: bi-encoder, model: "embedded:minilm"}}',
    )
    for only, guess in (("uncertain: [0.2, 0.8]", True), ("top_documents: 2", False)):
        asked = rehearsed(judged_config(tmp_path, *cascade, f"judge.only={{{only}}}"), sample=1)
        assert any("`uncertain` of `judge.only` leaves is a guess" in a for a in asked.assumptions) == guess


def test_dense_retrieval_draws_and_kept_embeddings_cost_nothing(tmp_path: Path) -> None:
    dense = ("retrieve={source: dense, engine: scorer, depth: 3}", f"engines.scorer.embeddings={tmp_path}/kept")
    found = rehearsed(small_config(tmp_path, *dense))
    estimated = [r for r in found.records if r.stage == "estimate"]
    assert sum(r.pairs for r in estimated) == sum(len(q) for _, q in REQUESTS.values()) * 3
    assert max(r.prompt_tokens for r in estimated) < 40, "sub-questions alone"
    assert len([a for a in found.assumptions if "drawn at random" in a or "are there already" in a]) == 2
    assert not (tmp_path / "kept").exists()


@pytest.mark.java
def test_candidates_are_found_by_lucene_or_drawn_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bm25 = "engines={llm: {kind: synthetic, questions: 2}, bm25: {kind: lucene, heap: 256m}}"
    config = judged_config(tmp_path, bm25, "retrieve={source: bm25, depth: 3}")
    found = rehearsed(config)
    assert calls(found.records)["retrieve"] == 4
    assert calls(found.records)["judge"] == 4 * 2 * 3
    assert not any("at random" in a for a in found.assumptions)

    monkeypatch.setattr("lancer.pipeline.rehearse.BUILD_AT_MOST", 0)
    monkeypatch.setattr("lancer.pipeline.rehearse.is_built", lambda digest, **of: False)
    drawn = rehearsed(config)
    assert calls(drawn.records)["judge"] == 4 * 2 * 3
    assert any("its index is not on this machine; candidates are documents drawn" in a for a in drawn.assumptions)
