"""Every kind of engine: the one table to add a line to.

A kind is a config model (with `kind`, `replicas`, `num_cpus`, `num_gpus` and `result_fields()`) and what builds it on a
worker. The roles say which stages may name it, and for what.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from lancer.engines.bi_encoder import BiEncoder, BiEncoderConfig
from lancer.engines.cross_encoder import CrossEncoder, CrossEncoderConfig
from lancer.engines.embedded import resolve_model
from lancer.engines.http_engine import HttpConfig, HttpEngine
from lancer.engines.lucene import LuceneConfig, LuceneEngine
from lancer.engines.lucene_index import index_digest
from lancer.engines.replay import ReplayConfig, ReplayEngine, recorded_digest
from lancer.engines.sources import DocumentSource
from lancer.engines.synthetic import SyntheticConfig, SyntheticEngine
from lancer.engines.vllm_engine import VllmConfig, VllmEngine
from lancer.storage import Storage

EngineConfig = Annotated[
    VllmConfig | HttpConfig | ReplayConfig | SyntheticConfig | BiEncoderConfig | CrossEncoderConfig | LuceneConfig,
    Field(discriminator="kind"),
]

Role = Literal["text", "scorer", "search", "dense search"]
ROLES: Final[dict[str, tuple[Role, ...]]] = {
    "vllm": ("text",),
    "http": ("text",),
    "replay": ("text",),
    "bi-encoder": ("scorer", "dense search"),
    "cross-encoder": ("scorer",),
    "lucene": ("search",),
    "synthetic": ("text", "scorer"),
}


def build_engine(config: EngineConfig, source: DocumentSource, storage: Storage) -> Any:
    """The engine itself; called on a worker. SetupError or EngineError with the reason when it cannot start."""
    match config:
        case VllmConfig():
            return VllmEngine(config)
        case HttpConfig():
            return HttpEngine(config)
        case ReplayConfig():
            return ReplayEngine(config, storage)
        case SyntheticConfig():
            return SyntheticEngine(config)
        case BiEncoderConfig():
            return BiEncoder(config, source, storage)
        case CrossEncoderConfig():
            return CrossEncoder(config)
        case LuceneConfig():
            corpus = source if source.kind == "corpus" and config.index is None else None
            if corpus is None:
                return LuceneEngine(config, None, None, storage)
            return LuceneEngine(config, corpus.location, corpus.digest, storage)


def answers_identity(identity: Mapping[str, Any]) -> dict[str, Any]:
    """What of an engine's identity an answer to one prompt depends on: not how prompts were made for it."""
    return {name: value for name, value in identity.items() if name != "room"}


def engine_identity(config: EngineConfig, source: DocumentSource, storage: Storage) -> dict[str, Any]:
    """Everything of an engine that can change results. SetupError: its model is missing; InputError: its index is."""
    identity = {"kind": config.kind, **config.result_fields()}
    if isinstance(config, LuceneConfig):
        return identity | {"index": source.digest if config.index is None else index_digest(config.index, storage)}
    if isinstance(config, ReplayConfig):
        return identity | {"records": recorded_digest(config.path, storage)}
    if isinstance(config, HttpConfig | SyntheticConfig):
        return identity
    if isinstance(config, BiEncoderConfig) and config.embeddings is not None:
        identity["corpus"] = source.digest
    return identity | {"revision": resolve_model(config.model, config.revision).revision}
