"""Text of requests and documents is data in a prompt: it must not end its place there or open a chat turn."""

from __future__ import annotations

import re

# Openings of chat-template tokens (<|im_start|>, <|eot_id|>, [INST], <s>, <think>) and of our own place marks.
_MARKS = re.compile(
    r"<(?=\s*/?\s*(?:\||｜|s>|think|start_of_turn|end_of_turn|bos>|eos>|request|document|question)|<SYS>)|\[(?=/?INST\])",
    re.IGNORECASE,
)


def as_data(text: str) -> str:
    """`text` with the first character of every mark doubled into a look-alike, so that no tokenizer reads it as one.

    Everything else is left as it is: braces are safe because prompts are joined, never formatted.
    """
    return _MARKS.sub(lambda m: "‹" if m.group() == "<" else "⁅", text).strip()
