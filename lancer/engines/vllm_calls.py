"""What a call asks of vLLM, and what vLLM's output says of it: `Sampling` → `SamplingParams`, output → `Generation`.

Log-probabilities are the model's own. vLLM applies the grammar of a structured output before it takes them, so a
choice is given as allowed tokens where each of its strings is one token: those are applied after, and cost less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lancer.engines.chat_tokens import TokenPrompt
from lancer.engines.protocols import Generation, Sampling

TokenOf = Callable[[str], int | None]


def sampling_params(sampling: Sampling, token_of: TokenOf, *, read_cache: bool = True) -> Any:
    """vLLM's parameters; ValueError when they cannot be had, in words for a person.

    token_of: the one token that a string is, or None.
    read_cache: of a prompt that is scored, whether what is cached is left out of the computation.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    restricted = sampling.choice is not None or sampling.json_schema is not None
    if sampling.score:
        if restricted or sampling.logprobs_of is not None:
            raise ValueError("a prompt that is scored has no output to restrict or to look at")
        return SamplingParams(
            max_tokens=1,  # 0 is refused
            temperature=0.0,
            prompt_logprobs=0,  # of the prompt's own tokens alone
            flat_logprobs=True,
            skip_reading_prefix_cache=not read_cache,
            detokenize=False,
            skip_clone=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
    allowed = _one_token_each(sampling.choice, token_of)
    if sampling.logprobs_of is not None and restricted and not allowed:
        raise ValueError("log-probabilities go with a choice whose strings are one token each, or with no restriction")
    return SamplingParams(
        max_tokens=1 if allowed else sampling.max_tokens,
        temperature=sampling.temperature,
        seed=sampling.seed if sampling.temperature > 0 else None,
        allowed_token_ids=allowed,
        structured_outputs=None if allowed or not restricted else _structure(sampling),
        logprob_token_ids=_tokens(sampling.logprobs_of, token_of),
        skip_clone=True,  # a deep copy per request takes 25 µs
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def read_output(output: Any, prompt: TokenPrompt, params: Any) -> Generation | None:
    """What a finished request says, without its times; None when the values of the scored part are not all in it.

    vLLM gives none for tokens whose predecessor was cached: repeat with `read_cache=False`.
    """
    completion = output.outputs[0]
    finish, error, text = completion.finish_reason, "", completion.text
    logprobs: tuple[float, ...] = ()
    if finish not in ("stop", "length"):
        finish, error, text = "error", f"vLLM ended the request with {finish!r}", ""
    elif params.prompt_logprobs is not None:
        scored = _scored(prompt, output.prompt_logprobs, output.num_cached_tokens or 0)
        if scored is None:
            return None
        finish, text, logprobs = "stop", "", scored
    else:
        if params.logprob_token_ids:
            first = completion.logprobs[0]
            logprobs = tuple(first[token].logprob for token in params.logprob_token_ids)
        if params.allowed_token_ids:
            finish = "stop"  # complete
    return Generation(
        text=text,
        error=error,
        finish=finish,
        prompt_tokens=len(prompt.ids),
        cached_tokens=output.num_cached_tokens or 0,
        output_tokens=len(completion.token_ids),
        logprobs=logprobs,
    )


def _scored(prompt: TokenPrompt, found: Sequence[Mapping[int, Any] | None], cached: int) -> tuple[float, ...] | None:
    """One value per scored token. `found` ends with the prompt's last token; its beginning may be missing (vLLM's
    second model runner) or hold whatever was in memory (its first)."""
    assert prompt.scored is not None
    start, end = prompt.scored
    shift = len(found) - len(prompt.ids)
    if cached >= start or start + shift < 0:
        return None
    values = []
    for position in range(start, end):
        token, at = prompt.ids[position], found[position + shift]
        if at is None or token not in at:
            return None
        values.append(float(at[token].logprob))
    return tuple(values)


def _structure(sampling: Sampling) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    choice = None if sampling.choice is None else list(sampling.choice)
    return StructuredOutputsParams(choice=choice, json=sampling.json_schema)


def _one_token_each(choice: Sequence[str] | None, token_of: TokenOf) -> list[int] | None:
    tokens = [token_of(text) for text in choice or ()]
    known = [token for token in tokens if token is not None]
    return known if known and len(known) == len(tokens) else None


def _tokens(texts: Sequence[str] | None, token_of: TokenOf) -> list[int] | None:
    if texts is None:
        return None
    tokens = []
    for text in texts:
        token = token_of(text)
        if token is None:
            raise ValueError(f"{text!r} is not one token of the model: it has no log-probability of its own")
        tokens.append(token)
    return tokens
