"""Every engine of a run behind its journals: what a stage is given."""

from __future__ import annotations

from lancer.engines.chat_tokens import ChatTokens
from lancer.engines.protocols import Documents, PairScorer, SearchEngine, TextEngine
from lancer.pipeline.journal import Journal, JournalledText
from lancer.pipeline.scored_pairs import JournalledScorer
from lancer.stages.base import Engines


class JournalledEngines:
    """Every engine of a run behind the journals of one shard. Searches are cheap and not written down."""

    def __init__(self, engines: Engines, journals: dict[str, Journal]) -> None:
        self._engines, self._journals = engines, journals

    def text(self, name: str) -> TextEngine:
        """The text engine of that name."""
        return JournalledText(self._engines.text(name), self._journals[name])

    def scorer(self, name: str) -> PairScorer:
        """The scorer of that name."""
        return JournalledScorer(self._engines.scorer(name), self._journals[name])

    def search(self, name: str) -> SearchEngine:
        """The search engine of that name."""
        return self._engines.search(name)

    def documents(self) -> Documents:
        """Document text."""
        return self._engines.documents()

    def context(self, name: str) -> int | None:
        """See `lancer.stages.base.Engines`."""
        return self._engines.context(name)

    def tokens(self, name: str) -> ChatTokens | None:
        """See `lancer.stages.base.Engines`."""
        return self._engines.tokens(name)
