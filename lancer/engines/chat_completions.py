"""The chat-completions format that OpenAI-compatible servers share: a prompt → a request's body, a reply → its meaning.

Pure: `lancer.engines.http_engine` sends the one and receives the other. What the servers agree on is used, and where
they differ (what `prompt_tokens` and `completion_tokens` include) their own total decides.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import responses
from typing import Any, Final

from lancer.engines.protocols import Generation, Message, Sampling

OWN_FIELDS: Final = frozenset({"model", "messages", "n", "stream"})
"""Of a request's body; no config may set them."""
SAMPLING_FIELDS: Final = frozenset(
    {"max_tokens", "temperature", "seed", "structured_outputs", "response_format", "logprobs", "top_logprobs"}
)
"""Set per call; a config may only leave them out."""

TOP_LOGPROBS: Final = 20  # the most that OpenAI and vLLM's default allow
_SAID_CHARS: Final = 300  # of a server's own words in an error


@dataclass(frozen=True)
class Retry:
    """Not answered, and the same request may be later. `after_s`: the server asks to wait so long."""

    reason: str
    after_s: float = 0.0
    connected: bool = True


@dataclass(frozen=True)
class Fatal:
    """Refused for a reason that concerns every call; with `maybe`, only if no call was ever answered."""

    reason: str
    maybe: bool = False


def request_body(
    model: str, messages: Sequence[Message], sampling: Sampling, extra: Mapping[str, object]
) -> dict[str, object]:
    """The JSON object to post. `extra` is added to it; a null there leaves the field out.

    A choice is vLLM's `structured_outputs`, which other servers may refuse. ValueError, in words for a person, for what
    the format cannot carry.
    """
    restricted = sampling.choice is not None or sampling.json_schema is not None
    if sampling.score:
        raise ValueError("chat completions have no log-probabilities of a prompt; score with a vLLM engine")
    if sampling.logprobs_of is not None and restricted:
        raise ValueError("servers restrict an output before they report log-probabilities; ask for one of the two")
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": m["role"], "content": m["content"]} for m in messages],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
    }
    if sampling.temperature > 0:
        body["seed"] = sampling.seed
    if sampling.choice is not None:
        body["structured_outputs"] = {"choice": list(sampling.choice)}
    if sampling.json_schema is not None:
        form = {"name": "answer", "strict": True, "schema": json.loads(sampling.json_schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    if sampling.logprobs_of is not None:
        body |= {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
    return {name: value for name, value in (body | dict(extra)).items() if value is not None}


def read_reply(
    status: int, headers: Mapping[str, str], content: bytes, secret: str, logprobs_of: Sequence[str] | None = None
) -> Generation | Retry | Fatal:
    """What a reply means. The server's own words enter a reason shortened, and without `secret`.

    logprobs_of: strings whose log-probabilities were asked for. A server tells those of its `TOP_LOGPROBS` likeliest
    tokens; a string that is none of them has -inf, which stands for less than the least of those.
    """
    body = _json(content)
    if 200 <= status < 300:
        if not isinstance(body, dict):
            return Retry("the reply is not a JSON object")
        if not body.get("choices") and isinstance(body.get("error"), dict):  # gateways hide failures in a 200
            code = body["error"].get("code")
            return _refused(code if isinstance(code, int) and code >= 400 else 500, headers, body, secret)
        return _generation(body, logprobs_of)
    return _refused(status, headers, body, secret)


def retry_after(value: str) -> float:
    """Seconds to wait by a Retry-After header: a number, or an HTTP date (negative when past); 0 when it is neither."""
    try:
        return float(value) if value.strip().isdecimal() else parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0


def _generation(body: dict[str, Any], logprobs_of: Sequence[str] | None) -> Generation | Retry:
    try:
        choice = body["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        text = message.get("content") or message.get("refusal") or ""
    except (LookupError, TypeError, AttributeError):
        return Retry("the reply holds no choice with a message")
    if not isinstance(text, str):
        return Retry("the reply's content is no text")
    prompt, cached, output = _usage(body.get("usage"))
    said = "" if finish in ("stop", "length") else f"the server ended the answer with {finish!r}"
    if finish == "content_filter":
        said = "the server's content filter ended the answer"
    logprobs: tuple[float, ...] = ()
    if logprobs_of is not None and not said:
        first = _first_logprobs(choice)
        said = "" if first else "the server reports no log-probabilities"
        logprobs = tuple(first.get(text, -math.inf) for text in logprobs_of) if first else ()
    return Generation(
        text="" if said else text,
        error=said,
        finish="error" if said else finish,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        logprobs=logprobs,
    )


def _first_logprobs(choice: dict[str, Any]) -> dict[str, float]:
    """Those of the first token by its text, likeliest first where several tokens read alike; empty when not told."""
    try:
        told = [(t["token"], float(t["logprob"])) for t in choice["logprobs"]["content"][0]["top_logprobs"]]
    except (LookupError, TypeError, ValueError):
        return {}
    return dict(sorted(told, key=lambda pair: pair[1]))


def _usage(usage: object) -> tuple[int, int, int]:
    """Prompt (cached ones included), cached and output tokens (reasoning included); zeros without usage.

    Most servers count cached tokens in the prompt and reasoning in the completion. For those that count one of them
    apart, total_tokens is more than prompt and completion by just that number.
    """
    prompt, output, total = (_count(usage, name) for name in ("prompt_tokens", "completion_tokens", "total_tokens"))
    details = usage if isinstance(usage, dict) else {}
    cached = _count(details.get("prompt_tokens_details"), "cached_tokens")
    reasoning = _count(details.get("completion_tokens_details"), "reasoning_tokens")
    apart = total - prompt - output
    if apart in (reasoning, reasoning + cached):
        output += reasoning
    if apart in (cached, reasoning + cached) and apart != reasoning:
        prompt += cached
    return prompt, min(cached, prompt), output


def _count(holder: object, name: str) -> int:
    value = holder.get(name) if isinstance(holder, dict) else None
    return value if isinstance(value, int) and value > 0 else 0


def _refused(status: int, headers: Mapping[str, str], body: object, secret: str) -> Generation | Retry | Fatal:
    name = f"{status} {responses.get(status, '')}".strip()
    said = _said(body, secret)
    if status in (401, 403):  # some servers quote a part of the key here
        return Fatal(f"the server refuses the key, or its absence ({name})", maybe=status == 403)
    if "insufficient_quota" in _codes(body):
        return Fatal(f"the quota is spent ({name}){said}")
    if status in (408, 425, 429) or status >= 500:
        return Retry(f"{name}{said}", retry_after(headers.get("retry-after", "")))
    if status in (402, 404, 405) or status < 400:
        return Fatal(f"check base_url, model and account: {name}{said}")
    return Generation(text="", error=f"the server refuses the prompt: {name}{said}", finish="error")


def _codes(body: object) -> set[object]:
    error = body.get("error") if isinstance(body, dict) else None
    return {error[k] for k in ("code", "type") if isinstance(error.get(k), str)} if isinstance(error, dict) else set()


def _said(body: object, secret: str) -> str:
    """The server's message as `: message`, or "" when it gives none."""
    message: object = body
    for name in ("error", "message", "detail"):
        if isinstance(message, dict):
            message = message.get(name, message)
    if not isinstance(message, str):
        return ""
    words = " ".join(message.split())
    if secret:
        words = words.replace(secret, "***")
    return f": {words[:_SAID_CHARS]}"


def _json(content: bytes) -> object:
    try:
        value: object = json.loads(content)
    except ValueError:  # of syntax and of encoding
        return None
    return value
