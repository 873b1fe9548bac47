"""Every kind of engine is in the table, in the union of configs and in `build_engine`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter, ValidationError

from lancer.engines.documents import corpus_digest
from lancer.engines.sources import DocumentSource
from lancer.engines.synthetic import SyntheticEngine
from lancer.engines.table import ROLES, EngineConfig, answers_identity, build_engine, engine_identity
from lancer.errors import InputError, SetupError
from lancer.storage import Storage

CONFIGS: dict[str, dict[str, Any]] = {
    "vllm": {"model": "org/model"},
    "http": {"model": "m", "base_url": "http://localhost:8000/v1"},
    "replay": {"path": "recorded.jsonl"},
    "synthetic": {},
    "bi-encoder": {"model": "org/model"},
    "cross-encoder": {"model": "org/model"},
    "lucene": {},
}
SOURCE = DocumentSource("corpus", "corpus.jsonl", "digest of the corpus")


def config_of(kind: str, **changes: Any) -> EngineConfig:
    config: EngineConfig = TypeAdapter(EngineConfig).validate_python({"kind": kind, **CONFIGS[kind], **changes})
    return config


def identity(config: EngineConfig) -> dict[str, Any]:
    return engine_identity(config, SOURCE, Storage())


def test_every_kind_has_a_config_and_a_role() -> None:
    models = get_args(get_args(EngineConfig)[0])
    kinds = {model.model_fields["kind"].default for model in models}
    assert kinds == ROLES.keys() == CONFIGS.keys()
    for kind in kinds:
        config = config_of(kind)
        assert config.kind == kind
        assert config.replicas == 1
        assert config.num_cpus >= 0
    with pytest.raises(ValidationError):
        TypeAdapter(EngineConfig).validate_python({"kind": "oracle"})


@pytest.mark.parametrize("kind", sorted(CONFIGS.keys() - {"replay"}))
def test_what_changes_results_is_in_the_identity_and_place_is_not(kind: str) -> None:
    plain = identity(config_of(kind))
    assert plain["kind"] == kind
    assert identity(config_of(kind, replicas=3, num_cpus=0.1)) == plain


def test_models_count_with_their_revision() -> None:
    plain = identity(config_of("vllm"))
    assert plain["revision"] == "main"
    assert identity(config_of("vllm", revision="abc"))["revision"] == "abc"
    assert identity(config_of("vllm", model="org/other")) != plain
    with pytest.raises(SetupError, match="no such folder"):
        identity(config_of("bi-encoder", model="./missing"))


def test_what_cuts_prompts_counts_for_a_stage_and_not_for_its_answers() -> None:
    plain, short = identity(config_of("http")), identity(config_of("http", tokenizer="t", max_model_len=512))
    assert plain != short
    assert answers_identity(plain) == answers_identity(short)
    assert answers_identity(identity(config_of("http", revision="2"))) != answers_identity(plain)


def test_an_index_counts_with_its_documents() -> None:
    assert identity(config_of("lucene"))["index"] == "digest of the corpus"
    assert identity(config_of("lucene", k1=1.2)) != identity(config_of("lucene"))
    with pytest.raises(InputError, match="no such index folder"):
        identity(config_of("lucene", index="./missing"))


def test_recorded_answers_count_by_content(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none"):
        identity(config_of("replay", path=str(tmp_path / "none.jsonl")))


def test_an_engine_is_built_from_its_config(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"doc_id": "a", "text": "b"}\n')
    source = DocumentSource("corpus", str(corpus), corpus_digest(corpus, Storage()))
    engine = build_engine(config_of("synthetic", seed=7), source, Storage())
    assert isinstance(engine, SyntheticEngine)
    assert engine.config.seed == 7
