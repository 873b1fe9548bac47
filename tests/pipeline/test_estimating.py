"""A forecast against what SmolLM2 in vLLM really computes, on a few queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lancer.config import Config
from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.protocols import Documents, PairScorer, SearchEngine, TextEngine
from lancer.engines.tokenizers import context_of, model_tokens
from lancer.engines.vllm_engine import VllmConfig, VllmEngine
from lancer.pipeline.estimating import estimate_plan
from lancer.pipeline.forecast import Forecast
from lancer.pipeline.inputs import read_inputs
from lancer.pipeline.plan import Plan, make_plan
from lancer.stages.base import call
from lancer.stages.records import LedgerRecord
from lancer.storage import Storage
from tests.pipeline.small import small_config

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).resolve().parents[2]
QUERIES, DEPTH = 4, 2
LLM = '{kind: vllm, model: "embedded:smollm2", max_model_len: 2048, kv_cache_gib: 1}'


@pytest.fixture(scope="module")
def engine() -> Iterator[VllmEngine]:
    engine = VllmEngine(VllmConfig(model="embedded:smollm2", max_model_len=2048, kv_cache_gib=1))
    yield engine
    engine.close()


class _Real:
    """The engines of a run in this process."""

    def __init__(self, engine: TextEngine, plan: Plan) -> None:
        self._engine, self._plan = engine, plan

    def text(self, name: str) -> TextEngine:
        return self._engine

    def scorer(self, name: str) -> PairScorer:
        raise NotImplementedError

    def search(self, name: str) -> SearchEngine:
        raise NotImplementedError

    def documents(self) -> Documents:
        return self._plan.source.open(Storage())

    def context(self, name: str) -> int | None:
        return context_of(self._plan.config.engines[name])

    def tokens(self, name: str) -> ChatTokens | None:
        known = model_tokens(self._plan.config.engines[name])
        return None if known is None else known.chat


def config_of(folder: Path, *overrides: str) -> Config:
    """Requests of the bundled sample with given candidates, judged by SmolLM2."""
    lines = (ROOT / "configs/sample/requests.jsonl").read_text().splitlines(keepends=True)[:QUERIES]
    (folder / "few.jsonl").write_text("".join(lines))
    given = (ROOT / "configs/sample/qrels.txt").read_text().splitlines()
    pairs = dict.fromkeys((line.split()[0], line.split()[2]) for line in given)
    (folder / "few.run").write_text(
        "".join(f"{q} Q0 {d} {i} {-i}.0 given\n" for i, (q, d) in enumerate(pairs, start=1))
    )
    return small_config(
        folder,
        f"requests={folder}/few.jsonl",
        f"corpus={ROOT}/configs/sample/corpus.jsonl",
        f"retrieve={{source: run, run: {folder}/few.run, depth: {DEPTH}}}",
        f"decompose={{source: given, path: {ROOT}/configs/sample/sub_questions.jsonl}}",
        "estimate=null",
        "judge={engine: llm, max_tokens: 1}",
        "select.selectors=[sum(tau=1)]",
        f"engines={{llm: {LLM}}}",
        *overrides,
    )


def predicted_and_real(config: Config, engine: VllmEngine) -> tuple[Forecast, list[LedgerRecord]]:
    storage = Storage()
    plan = make_plan(config, read_inputs(config, storage), storage)
    table = plan.inputs.table
    records: list[LedgerRecord] = []
    for stage in plan.stages:
        columns, output = call(stage.stage, table, _Real(engine, plan))
        records.extend(output.ledger)
        for new in stage.stage.adds:
            table = table.append_column(new, columns[new.name])
    return estimate_plan(plan, storage, sample=QUERIES), records


def total(records: Sequence[LedgerRecord], name: str) -> int:
    return sum(getattr(r, name) for r in records)


@pytest.mark.parametrize("layout", ["published", "shared-prefix"])
def test_with_given_sub_questions_every_token_is_foreseen(tmp_path: Path, engine: VllmEngine, layout: str) -> None:
    found, real = predicted_and_real(config_of(tmp_path, f"judge.layout={layout}"), engine)
    for name in ("calls", "prompt_tokens", "output_tokens"):
        assert found.total.counts[name].value == total(real, name)
    share = total(real, "cached_tokens") / total(real, "prompt_tokens")
    assert found.total.cached_share == pytest.approx(share, abs=0.02)


def test_with_sub_questions_by_the_model_the_tokens_are_within_15_percent(tmp_path: Path, engine: VllmEngine) -> None:
    decompose = "decompose={source: llm, n: 2, max_tokens: 64, temperature: 0.7}"
    found, real = predicted_and_real(config_of(tmp_path, decompose), engine)
    tokens = total(real, "prompt_tokens") + total(real, "output_tokens")
    counts = found.total.counts
    assert counts["prompt_tokens"].value + counts["output_tokens"].value == pytest.approx(tokens, rel=0.15)
