"""What must hold of every table `compressed`."""

from __future__ import annotations

from typing import Any

from lancer.text.sentences import sentence_spans


def check_spans(rows: list[dict[str, Any]], texts: dict[str, str]) -> None:
    """Every span is a sentence of its document, in order, and what is quoted stands there."""
    for row in rows:
        spans = [(s["start"], s["end"]) for s in row["spans"]]
        assert spans == sorted(set(spans))
        assert set(spans) <= set(map(tuple, sentence_spans(texts[row["doc_id"]])))
        assert row["text"] == " ".join(texts[row["doc_id"]][start:end] for start, end in spans)
        assert row["characters"] == len(texts[row["doc_id"]])
