"""What a prompt is made of: turns of a chat, with marks for the engine that it goes to."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class Message(TypedDict):
    """One turn of a chat prompt; role is system, user or assistant.

    The last message may carry marks, most of them offsets into its content. Engines leave out of account what they have
    no use for, but for `scored`.
    """

    role: str
    content: str
    shared: NotRequired[int]  # content[:shared] begins other prompts too, word for word
    pad_at: NotRequired[int]  # before `shared`: newlines may be put in here, up to the end of a block of a prefix cache
    call: NotRequired[tuple[str, int]]  # about which query, and which of the stage's calls about it, from 0
    scored: NotRequired[tuple[int, int]]  # the part whose log-probabilities `Sampling.score` asks for
