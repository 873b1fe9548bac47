"""Text of requests, documents and sub-questions is data in a prompt: it cannot end its place there or open a chat turn.

Chat templates are text too: a document that spells `<|im_end|>` would end the user's turn, because tokenizers turn that
spelling into the special token wherever it stands. Instructions in plain words cannot be taken out of a text; they stay
between the marks of their place, and the rubric says what that place is.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Final

# By shape, not by model, so that a new model's tokens are covered: <|im_end|> (DeepSeek's full-width bars as well),
# <s>, <think>, <start_of_turn>, <turn|>; our own marks however they are spaced; [INST], [/INST], [gMASK], [|user|],
# [@BOS@]; ]~b], [e~[.
_MARKS: Final = re.compile(
    r"<(?=\s*/?\s*(?:\||(?:request|document|sub[-_ ]?question|question)s?\b)|[^>\s]{0,64}>)"
    r"|\[(?=/?(?:[|@]|(?-i:[gs]?[A-Z][A-Z0-9_]+)\])|e~\[|~!?b[\[\]])"
    r"|\](?=~!?b[\[\]])",
    re.IGNORECASE,
)
_HARMLESS: Final = {"<": "\u2039", "[": "\u2045", "]": "\u2046"}
_OPENINGS: Final = re.compile(r"[<\[\ufe64\uff1c\uff3b\uff3d]|\]~")


@lru_cache(maxsize=128)  # 0.1 ms per 2,000 characters, and each pair of a document asks for the same text
def as_data(text: str) -> str:
    """`text`, stripped, with the bracket of everything that has the shape of a mark replaced by a look-alike.

    Without its bracket no tokenizer reads `|im_end|>` as a token. Characters are replaced one for one and all else
    stays as it is: braces are safe because prompts are joined, never formatted. Full-width brackets and invisible
    characters do not hide a mark, as some tokenizers fold them first.
    """
    text = text.strip()
    if not _OPENINGS.search(text):
        return text
    shadow, places = (text, None) if text.isascii() else _folded(text)
    characters = list(text)
    for mark in _MARKS.finditer(shadow):
        at = mark.start() if places is None else places[mark.start()]
        characters[at] = _HARMLESS[mark.group()]
    return "".join(characters)


def _folded(text: str) -> tuple[str, list[int]]:
    """The text as a normalising tokenizer may see it, and where each of its characters stands in `text`."""
    shadow: list[str] = []
    places: list[int] = []
    for at, character in enumerate(text):
        if not character.isascii():
            if unicodedata.category(character) == "Cf" or "\ufe00" <= character <= "\ufe0f":
                continue
            folded = unicodedata.normalize("NFKC", character)
            character = folded if len(folded) == 1 else character
        shadow.append(character)
        places.append(at)
    return "".join(shadow), places
