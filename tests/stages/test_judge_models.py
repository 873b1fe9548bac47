"""The judge with SmolLM2 in vLLM: every layout and readout on the same few pairs, one engine for all."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.protocols import Documents, PairScorer, SearchEngine
from lancer.engines.tokenizers import context_of, model_tokens
from lancer.engines.vllm_engine import VllmConfig, VllmEngine
from lancer.schema import MATRIX
from lancer.stages.base import StageOutput, call
from lancer.stages.judge import Judge, JudgeConfig
from tests.scripted import Texts
from tests.stages.batches import with_matrix_inputs

# vLLM and what it imports warn about themselves.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

TEXTS = {
    "lake": "The lake is forty metres deep in the middle. Perch and pike live in it, and it freezes in most winters.",
    "bridge": "The bridge was built of oak in 1820. Tolls paid for its repair, and trams have crossed it since 1904.",
    **{
        name: f"{name} says: The lake is forty metres deep. Perch and pike live in it."
        for name in ("a0", "a1", "b0", "b1")
    },
    "long": "The bridge was closed for repair again. " * 60 + "The lake is forty metres deep.",
}
QUESTIONS = ["How deep is the lake?", "Which fish live in the lake?", "When was the bridge built?"]
ROWS = [{"query_id": "q", "candidates": ["lake", "bridge"], "sub_questions": QUESTIONS}]
LONG = [{"query_id": "q", "candidates": ["lake", "long"], "sub_questions": QUESTIONS[:1]}]


@dataclass(frozen=True)
class OneEngine:
    engine: VllmEngine

    def text(self, name: str) -> VllmEngine:
        return self.engine

    def scorer(self, name: str) -> PairScorer:
        raise NotImplementedError

    def search(self, name: str) -> SearchEngine:
        raise NotImplementedError

    def documents(self) -> Documents:
        return Texts(TEXTS)

    def context(self, name: str) -> int | None:
        return context_of(self.engine.config)

    def tokens(self, name: str) -> ChatTokens | None:
        known = model_tokens(self.engine.config)
        return None if known is None else known.chat


@pytest.fixture(scope="module")
def engines() -> Iterator[OneEngine]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = VllmEngine(VllmConfig(model="embedded:smollm2", max_model_len=512, max_num_seqs=8, kv_cache_gib=0.5))
    yield OneEngine(engine)
    engine.close()


def judged(engines: OneEngine, rows: list[dict[str, Any]] = ROWS, **settings: Any) -> tuple[Any, Any, StageOutput]:
    """Values and raw output of the one query."""
    stage = Judge(JudgeConfig(with_request=False, **settings))
    table, output = call(stage, with_matrix_inputs(stage, rows), engines)
    fields = MATRIX[stage.scale]
    assert {s for line in table[fields.status.name].to_pylist()[0] for s in line} == {"ok"}, output.failures
    assert output.failures == []
    return table[fields.values.name].to_pylist()[0], table[fields.raw.name].to_pylist()[0], output


@pytest.mark.parametrize("layout", ["published", "shared-prefix", "per-document"])
def test_every_layout_gives_digits(engines: OneEngine, layout: str) -> None:
    values, raw, output = judged(engines, layout=layout)
    assert all(v in range(6) for line in values for v in line)
    calls, pairs = (sum(getattr(r, name) for r in output.ledger) for name in ("calls", "pairs"))
    assert (calls, pairs) == (2 if layout == "per-document" else 6, 6)
    if layout == "per-document":
        assert all(text.count(":") == 3 for line in raw for text in line), "one JSON object with every rating"


@pytest.mark.parametrize("layout", ["published", "shared-prefix"])
def test_an_expected_rating_lies_between_the_digits(engines: OneEngine, layout: str) -> None:
    values, raw, output = judged(engines, layout=layout, readout="expected")
    assert all(0 < v < 5 and v != round(v) for line in values for v in line)
    assert all(0 <= float(text.split()[-1]) < 0.99 for line in raw for text in line)
    assert sum(r.output_tokens for r in output.ledger) == 6, "one token each"


@pytest.mark.parametrize("layout", ["published", "shared-prefix"])
def test_a_likelihood_tells_the_document_that_answers(engines: OneEngine, layout: str) -> None:
    values, raw, output = judged(engines, layout=layout, readout="likelihood")
    lake, bridge = values
    assert lake[0] > bridge[0]
    assert lake[1] > bridge[1]
    assert bridge[2] > lake[2]
    assert all(
        (float(text) > 0) == (v > 0.5)
        for line, row in zip(raw, values, strict=True)
        for text, v in zip(line, row, strict=True)
    )
    assert [(r.calls, r.pairs) for r in output.ledger] == [(6 + (2 if layout == "published" else 3), 6)]


def test_padding_to_blocks_caches_more(engines: OneEngine) -> None:
    cached = {}
    for pad, names in ((False, ("a0", "a1")), (True, ("b0", "b1"))):  # of equal length, and new to the cache
        rows = [
            {"query_id": "q", "candidates": names, "sub_questions": [f"{q} {i}" for q in QUESTIONS for i in range(4)]}
        ]
        cached[pad] = sum(r.cached_tokens for r in judged(engines, rows, pad_to_blocks=pad)[2].ledger)
    assert cached[True] > cached[False]


def test_a_long_document_is_cut_to_fit_or_read_in_windows(engines: OneEngine) -> None:
    cut, _, first = judged(engines, LONG, readout="likelihood")
    whole, _, second = judged(engines, LONG, readout="likelihood", long_documents="windows")
    assert cut[0] == pytest.approx(whole[0], abs=0.02)
    assert whole[1][0] > cut[1][0], "the answer is in the last window"
    assert first.ledger[0].pairs == second.ledger[0].pairs == 2
    assert second.ledger[0].calls > first.ledger[0].calls
