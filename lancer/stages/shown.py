"""What of its documents an LLM that reranks is shown: the first words of each, and no more than its length allows.

Which documents meet in a prompt is known only while the model is asked. So they are cut, evenly, until the longest of
them fit a prompt together: then any of them do. Counted with the model's own tokenizer, where their bytes do not show
already that they fit (see `lancer.stages.room`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lancer.prompts.data import as_data
from lancer.reranking.base import ByModel
from lancer.stages.base import Engines
from lancer.stages.room import surely_fits
from lancer.text.fitting import cut, even_limit
from lancer.text.words import first_words

SEAM_TOKENS: Final = 2  # a text may be so many more tokens between its marks than by itself


def shown(step: ByModel, query: str, documents: Sequence[str], engines: Engines) -> tuple[list[str], int]:
    """The documents as the step's prompts show them, and how many of them are cut.

    Without the engine's tokenizer, or where not even empty documents fit, only words are counted.
    """
    texts = [first_words(text, step.max_words) for text in documents]
    fitted = _fitted(step, query, texts, engines)
    return fitted, sum(len(new) < len(old.rstrip()) for new, old in zip(fitted, documents, strict=True))


def _fitted(step: ByModel, query: str, texts: list[str], engines: Engines) -> list[str]:
    context, output = engines.context(step.engine), step.sampling().max_tokens
    together = min(step.together, len(texts))
    if context is None or not together:
        return texts
    empty = step.messages(query, [""] * together)
    size = sum(len(message["content"].encode()) for message in empty)
    size += sum(sorted(len(as_data(text).encode()) for text in texts)[-together:])
    tokens = None if surely_fits(size, output, context) else engines.tokens(step.engine)
    if tokens is None:
        return texts
    count = tokens.count_text
    lengths = [count(as_data(text)) for text in texts]
    room = context - output - tokens.count(empty) - SEAM_TOKENS * together
    limit = even_limit(sorted(lengths)[-together:], room)
    if limit is None or limit < 1:
        return texts
    return [
        text if length <= limit else cut(text, lambda start: count(as_data(start)) <= limit)
        for text, length in zip(texts, lengths, strict=True)
    ]
