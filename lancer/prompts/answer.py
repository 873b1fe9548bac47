"""A model's output → its answer: without thinking, chat tokens and code fences. Both readers and parsers start here."""

from __future__ import annotations

import re
from typing import Final

# <think> (DeepSeek-R1, Qwen), [THINK] (Magistral), ◁think▷ (Kimi), and gpt-oss channels, whole or without their
# special tokens, which vLLM leaves out: "analysis…assistantfinal…".
_OPEN: Final = re.compile(
    r"<(?:seed:)?(?:think|thinking|thought|reasoning|scratchpad)>|\[THINK\]|\u25c1think\u25b7"
    r"|<\|channel\|>(?:analysis|commentary)|\Aanalysis(?=[A-Z])",
    re.IGNORECASE,
)
_OPENED: Final = re.compile(rf"(?:{_OPEN.pattern})\s*\Z", re.IGNORECASE)
_CLOSE: Final = re.compile(
    r"</(?:seed:)?(?:think|thinking|thought|reasoning|scratchpad)>|\[/THINK\]|\u25c1/think\u25b7"
    r"|<\|channel\|>final\s*(?:<\|constrain\|>\s*\w+\s*)?<\|message\|>|assistantfinal",
    re.IGNORECASE,
)
_END: Final = re.compile(
    r"(?<=\S)\s*(?:<\|(?:im_end|eot_id|eom_id|end|return|endoftext|end_of_text|eot|endofturn)\|>|</s>"
    r"|<(?:end_of_turn|turn\||eos)>|<\uff5cend\u2581of\u2581sentence\uff5c>)"
)
_TOKENS: Final = re.compile(
    r"<[|\uff5c][^<>\n]{1,40}[|\uff5c]>|</?s>|<(?:start_of_turn|end_of_turn|eos|pad)>|\[/?INST\]"
)
_FENCE: Final = re.compile(r"^[ \t]*(?:```|~~~)[ \t]*[\w-]*[ \t]*$|```", re.MULTILINE)


def opening_of(prompt: str) -> str:
    """The mark, with blanks behind it, by which a rendered prompt opens a thinking block for the model; "" = none."""
    found = _OPENED.search(prompt)
    return found.group() if found else ""


def answer_of(output: str) -> str | None:
    """What the model says after thinking, stripped; None when the thinking has not ended.

    The answer begins after the last closing mark and ends with the turn: models go on with a next question of their
    own. A block that opens and does not close is unfinished, whatever stands before or in it; an engine whose chat
    template opens the block itself puts the mark before the output (`lancer.engines.chat_tokens`).
    """
    ends = [mark.end() for mark in _CLOSE.finditer(output)]
    answer = output[ends[-1] :] if ends else output
    if _OPEN.search(answer):
        return None
    answer = _END.split(answer, maxsplit=1)[0]
    return _FENCE.sub("\n", _TOKENS.sub(" ", answer)).strip()
