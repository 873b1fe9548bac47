from __future__ import annotations

import pickle

import pytest
from pydantic import ValidationError

from lancer.engines.protocols import Hit, Hits
from lancer.stages.base import call
from lancer.stages.retrieve import Retrieve, RetrieveConfig
from tests.scripted import Engines, ScriptedSearch
from tests.stages.batches import requests

TEXTS = {"d1": "one", "d2": "two"}


def test_hits_become_candidates_in_order_and_those_without_text_are_marked() -> None:
    search = ScriptedSearch({"towers about towers": [Hit("d2", 2.5), Hit("x", 2.0), Hit("d1", 1.0)]})
    stage = Retrieve(RetrieveConfig(depth=3, query=("title", "text")))
    table, output = call(stage, requests("q", title="towers"), Engines(search=search, texts=TEXTS))
    assert table["candidates"].to_pylist() == [
        [
            {"doc_id": "d2", "score": 2.5, "has_text": True},
            {"doc_id": "x", "score": 2.0, "has_text": False},
            {"doc_id": "d1", "score": 1.0, "has_text": True},
        ]
    ]
    assert [(f.reason, f.detail) for f in output.failures] == [
        ("no_text", "1 of 3 candidates have no document text, e.g. 'x'")
    ]
    assert [(r.engine, r.calls) for r in output.ledger] == [("bm25", 1)]


def test_given_candidates_keep_their_order_and_nothing_else_enters() -> None:
    given = [{"doc_id": "d2", "score": None}, {"doc_id": "d1", "score": None}, {"doc_id": "d3", "score": None}]
    stage = Retrieve(RetrieveConfig(source="requests", depth=2))
    table, output = call(stage, requests("q", given_candidates=given), Engines(texts=TEXTS))
    candidates = table["candidates"].to_pylist()[0]
    assert [c["doc_id"] for c in candidates] == ["d2", "d1"]
    assert candidates[0]["score"] > candidates[1]["score"]
    assert stage.engines == ()
    assert output.ledger[0].calls == 0


def test_a_query_without_candidates_stays_and_is_a_failure() -> None:
    table, output = call(Retrieve(RetrieveConfig()), requests("q"), Engines(search=ScriptedSearch({})))
    assert table["candidates"].to_pylist() == [[]]
    assert [f.reason for f in output.failures] == ["no_candidates"]


def test_a_run_goes_with_source_run_only() -> None:
    with pytest.raises(ValidationError, match="`run` must be given with source 'run', and only then"):
        RetrieveConfig(run="x.run")
    with pytest.raises(ValidationError, match="`run` must be given"):
        RetrieveConfig(source="run")


def test_two_searches_are_fused_by_rank_and_each_is_in_the_ledger() -> None:
    lexical = [Hit("d1", 9.0), Hit("d2", 8.0), Hit("d3", 7.0)]
    dense = [Hit("d3", 0.9), Hit("d2", 0.8), Hit("d4", 0.7)]
    stage = Retrieve(RetrieveConfig(source="rrf", depth=3, dense_engine="encoder"))
    found = {"bm25": ScriptedSearch({"about towers": lexical}), "encoder": ScriptedSearch({"about towers": dense})}
    table, output = call(stage, requests("q"), Engines(searches=found, texts=TEXTS | {"d3": "three"}))
    (candidates,) = table["candidates"].to_pylist()
    assert [(c["doc_id"], c["score"]) for c in candidates] == [
        ("d3", 1 / 63 + 1 / 61),
        ("d2", 1 / 62 + 1 / 62),
        ("d1", 1 / 61),
    ]
    assert stage.engines == ("bm25", "encoder")
    assert [(r.engine, r.calls) for r in output.ledger] == [("bm25", 1), ("encoder", 1)]
    assert RetrieveConfig(source="rrf").tag == "rrf(bm25,dense)"


def test_what_a_search_encodes_is_in_the_ledger() -> None:
    found = {"bm25": ScriptedSearch({"about towers": [Hit("d1", 1.0)]})}
    found["encoder"] = ScriptedSearch({"about towers": Hits([Hit("d2", 1.0)], tokens=6)})
    stage = Retrieve(RetrieveConfig(source="rrf", dense_engine="encoder"))
    _, output = call(stage, requests("q"), Engines(searches=found, texts=TEXTS))
    assert [(r.engine, r.prompt_tokens) for r in output.ledger] == [("bm25", 0), ("encoder", 6)]
    assert pickle.loads(pickle.dumps(Hits([Hit("d2", 1.0)], tokens=6))).tokens == 6, "from an actor to a worker"


def test_identity_follows_what_can_change_results() -> None:
    base = RetrieveConfig()
    assert Retrieve(base).identity() == Retrieve(RetrieveConfig(engine="other")).identity()
    assert Retrieve(base).identity() != Retrieve(RetrieveConfig(depth=5)).identity()
    assert Retrieve(base).identity() != Retrieve(RetrieveConfig(query=("title",))).identity()
    dense, fused = RetrieveConfig(source="dense"), RetrieveConfig(source="rrf")
    assert len({str(Retrieve(config).identity()) for config in (base, dense, fused)}) == 3
