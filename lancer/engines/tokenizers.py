"""The tokenizer of a text engine, without the engine: to count tokens before paying, to keep prompts within a limit.

Loaded once per process and model. Only the files of the tokenizer and the model's config are read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.embedded import resolve_model
from lancer.engines.http_engine import HttpConfig
from lancer.engines.table import EngineConfig
from lancer.engines.vllm_engine import VllmConfig, block_of
from lancer.errors import SetupError


@dataclass(frozen=True)
class ModelTokens:
    """`chat` counts as the engine does; `context` is the most tokens that a prompt and its output may have together."""

    chat: ChatTokens
    context: int


def model_tokens(config: EngineConfig) -> ModelTokens | None:
    """None where the engine has no tokenizer that is known here: replay, synthetic, HTTP without `tokenizer`.

    SetupError: the model's files are missing or hold no chat template.
    """
    match config:
        case VllmConfig():
            template = json.dumps(config.chat_template_kwargs, sort_keys=True)
            return _load(config.model, config.revision, template, block_of(config), config.max_model_len)
        case HttpConfig(tokenizer=str() as model):
            template = json.dumps(config.extra_body.get("chat_template_kwargs") or {}, sort_keys=True)
            return _load(model, config.tokenizer_revision, template, None, config.max_model_len)
        case _:
            return None


def has_tokenizer(config: EngineConfig) -> bool:
    """Whether `model_tokens` is not None, without loading anything."""
    return isinstance(config, VllmConfig) or (isinstance(config, HttpConfig) and config.tokenizer is not None)


def context_of(config: EngineConfig) -> int | None:
    """`model_tokens(config).context`, where the model's files are at hand without loading its tokenizer."""
    match config:
        case VllmConfig():
            own = _own_context(config.model, config.revision)
        case HttpConfig(tokenizer=str() as model):
            own = _own_context(model, config.tokenizer_revision)
        case _:
            return None
    if own is None:
        tokens = model_tokens(config)
        return None if tokens is None else tokens.context
    return min(own, config.max_model_len or own)


@lru_cache(maxsize=4)
def _own_context(model: str, revision: str | None) -> int | None:
    """By a local folder's config.json, read without transformers, whose import takes seconds and 300 MB."""
    file = Path(resolve_model(model, revision).path_or_id) / "config.json"
    if not file.is_file():
        return None
    settings = json.loads(file.read_text())
    own = settings.get("text_config", settings).get("max_position_embeddings")
    return own if isinstance(own, int) else None


@lru_cache(maxsize=4)
def _load(model: str, revision: str | None, template: str, block: int | None, context: int | None) -> ModelTokens:
    from transformers import AutoConfig, AutoTokenizer

    resolved = resolve_model(model, revision)
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolved.path_or_id, revision=revision)
        own = AutoConfig.from_pretrained(resolved.path_or_id, revision=revision).get_text_config()
    except (OSError, ValueError) as error:
        raise SetupError(f"the tokenizer of {model!r} cannot be loaded: {error}") from error
    if not getattr(tokenizer, "chat_template", None):
        raise SetupError(f"model {model!r} has no chat template; choose an instruction-tuned one")
    length = min(n for n in (context, getattr(own, "max_position_embeddings", None)) if n)
    return ModelTokens(ChatTokens(tokenizer, json.loads(template), block), length)
