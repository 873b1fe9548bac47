"""Several documents in one prompt, each between marks that carry its label: no document can forge a neighbour's."""

from __future__ import annotations

from collections.abc import Sequence

from lancer.prompts.data import as_data


def labelled(documents: Sequence[str], labels: Sequence[object]) -> str:
    """`<document LABEL>`, the text, `</document>`, for each."""
    return "\n\n".join(
        f"<document {label}>\n{as_data(text)}\n</document>" for label, text in zip(labels, documents, strict=True)
    )
