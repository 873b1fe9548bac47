"""Requests as servers expect them, and replies as servers really send them."""

from __future__ import annotations

import json
import math
import time
from email.utils import formatdate
from typing import Any

import pytest

from lancer.engines.chat_completions import Fatal, Retry, read_reply, request_body, retry_after
from lancer.engines.protocols import Generation, Message, Sampling

PROMPT: list[Message] = [{"role": "user", "content": "Rate this."}]


def reply(body: object, status: int = 200, headers: dict[str, str] | None = None) -> Generation | Retry | Fatal:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_reply(status, headers or {}, content, "sk-very-secret")


def completion(usage: object = None, finish: object = "stop", message: object = None) -> Generation | Retry | Fatal:
    choice = {"message": message or {"role": "assistant", "content": "4"}, "finish_reason": finish}
    return reply({"choices": [choice], "usage": usage})


def test_a_greedy_request_has_no_seed() -> None:
    body = request_body("m", PROMPT, Sampling(max_tokens=3, seed=7), {})
    assert body == {"model": "m", "messages": PROMPT, "max_tokens": 3, "temperature": 0.0}


def test_seed_and_choice_are_sent() -> None:
    body = request_body("m", PROMPT, Sampling(max_tokens=1, temperature=0.7, seed=7, choice=("0", "1")), {})
    assert body["seed"] == 7
    assert body["structured_outputs"] == {"choice": ["0", "1"]}


def test_extra_fields_are_added_and_null_leaves_fields_out() -> None:
    extra: dict[str, Any] = {
        "chat_template_kwargs": {"enable_thinking": False},
        "max_tokens": None,
        "max_completion_tokens": 50,
    }
    body = request_body("m", PROMPT, Sampling(max_tokens=1), extra)
    assert "max_tokens" not in body
    assert body["max_completion_tokens"] == 50
    assert body["chat_template_kwargs"] == {"enable_thinking": False}


def test_marks_stay_here() -> None:
    marked: list[Message] = [{"role": "user", "content": "Rate this.", "shared": 4, "pad_at": 2, "scored": (5, 9)}]
    assert request_body("m", marked, Sampling(max_tokens=1), {})["messages"] == PROMPT


def test_json_and_logprobs_are_asked_for() -> None:
    body = request_body("m", PROMPT, Sampling(max_tokens=9, json_schema='{"type": "object"}'), {})
    form = {"name": "answer", "strict": True, "schema": {"type": "object"}}
    assert body["response_format"] == {"type": "json_schema", "json_schema": form}
    body = request_body("m", PROMPT, Sampling(max_tokens=1, logprobs_of=("0", "1")), {})
    assert (body["logprobs"], body["top_logprobs"]) == (True, 20)


def test_what_chat_completions_cannot_carry() -> None:
    with pytest.raises(ValueError, match="no log-probabilities of a prompt"):
        request_body("m", PROMPT, Sampling(max_tokens=1, score=True), {})
    with pytest.raises(ValueError, match="ask for one of the two"):
        request_body("m", PROMPT, Sampling(max_tokens=1, choice=("0", "1"), logprobs_of=("0", "1")), {})


TOP = [{"token": "4", "logprob": -0.1}, {"token": " 4", "logprob": -3.5}, {"token": "4", "logprob": -7.0}]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"content": [{"token": "4", "logprob": -0.1, "top_logprobs": TOP}]}, (-math.inf, -0.1)),
        ({"content": [{"top_logprobs": TOP}, {"top_logprobs": [{"token": "0", "logprob": -1}]}]}, (-math.inf, -0.1)),
        ({"content": [{"top_logprobs": [{"token": "0", "logprob": -2}]}]}, (-2.0, -math.inf)),
        ({"content": []}, None),
        ({"content": None}, None),
        ({"content": [{"top_logprobs": [{"token": "0", "logprob": None}]}]}, None),
        (None, None),
    ],
)
def test_logprobs_are_of_the_first_token(told: object, expected: tuple[float, ...] | None) -> None:
    choice = {"message": {"content": "4"}, "finish_reason": "length", "logprobs": told}
    got = read_reply(200, {}, json.dumps({"choices": [choice]}).encode(), "", ("0", "4"))
    assert isinstance(got, Generation)
    if expected is None:
        assert (got.error, got.text, got.finish) == ("the server reports no log-probabilities", "", "error")
    else:
        assert (got.logprobs, got.text, got.finish) == (expected, "4", "length")


USAGES = {
    "plain": ({"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}, (100, 0, 5)),
    "cached ones are part of the prompt": (
        {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "total_tokens": 105,
            "prompt_tokens_details": {"cached_tokens": 96},
        },
        (100, 96, 5),
    ),
    "reasoning is part of the completion": (
        {
            "prompt_tokens": 100,
            "completion_tokens": 60,
            "total_tokens": 160,
            "completion_tokens_details": {"reasoning_tokens": 55},
        },
        (100, 0, 60),
    ),
    "reasoning counted apart": (
        {
            "prompt_tokens": 32,
            "completion_tokens": 9,
            "total_tokens": 135,
            "prompt_tokens_details": {"cached_tokens": 6},
            "completion_tokens_details": {"reasoning_tokens": 94},
        },
        (32, 6, 103),
    ),
    "cached ones counted apart": (
        {
            "prompt_tokens": 4,
            "completion_tokens": 1,
            "total_tokens": 101,
            "prompt_tokens_details": {"cached_tokens": 96},
        },
        (100, 96, 1),
    ),
    "both counted apart": (
        {
            "prompt_tokens": 4,
            "completion_tokens": 1,
            "total_tokens": 121,
            "prompt_tokens_details": {"cached_tokens": 96},
            "completion_tokens_details": {"reasoning_tokens": 20},
        },
        (100, 96, 21),
    ),
    "no total": ({"prompt_tokens": 100, "completion_tokens": 5}, (100, 0, 5)),
    "nulls": (
        {
            "prompt_tokens": 100,
            "completion_tokens": None,
            "total_tokens": 100,
            "prompt_tokens_details": None,
            "completion_tokens_details": {"reasoning_tokens": None},
        },
        (100, 0, 0),
    ),
    "none": (None, (0, 0, 0)),
    "nonsense": ("lots", (0, 0, 0)),
}


@pytest.mark.parametrize("name", USAGES)
def test_every_token_is_counted_once(name: str) -> None:
    usage, expected = USAGES[name]
    got = completion(usage)
    assert isinstance(got, Generation)
    assert (got.prompt_tokens, got.cached_tokens, got.output_tokens) == expected


def test_stop_and_length_are_answers() -> None:
    assert completion() == Generation(text="4", finish="stop")
    assert completion(finish="length") == Generation(text="4", finish="length")


def test_a_filtered_answer_is_an_error_that_still_cost_tokens() -> None:
    got = completion({"prompt_tokens": 9, "completion_tokens": 2}, "content_filter")
    error = "the server's content filter ended the answer"
    assert got == Generation(text="", error=error, finish="error", prompt_tokens=9, output_tokens=2)


@pytest.mark.parametrize("finish", ["abort", "tool_calls", None])
def test_another_ending_is_an_error_that_names_it(finish: str | None) -> None:
    got = completion(finish=finish)
    assert isinstance(got, Generation)
    assert (got.text, got.finish) == ("", "error")
    assert repr(finish) in got.error


def test_reasoning_beside_the_answer_is_not_the_answer() -> None:
    message = {"content": "4", "reasoning_content": "Perhaps 2?", "reasoning": "Perhaps 2?"}
    assert completion(message=message) == Generation(text="4")
    assert completion(message=message | {"content": None}, finish="length") == Generation(text="", finish="length")


def test_a_refusal_is_what_the_model_said() -> None:
    message = {"content": None, "refusal": "I cannot rate that."}
    assert completion(message=message) == Generation(text="I cannot rate that.")


BROKEN: list[object] = [
    b"",
    b"<html>Sign in</html>",
    b'{"choices": [{"mess',
    b"\xff\xfe",
    [],
    {},
    {"choices": []},
    {"choices": [None]},
    {"choices": [{}]},
    {"choices": [{"message": None}]},
    {"choices": [{"message": {"content": [{"type": "text"}]}}]},
    {"error": {"message": "provider overloaded"}},
    {"error": {"message": "slow down", "code": "rate_limited"}},
    {"error": {"message": "slow down", "code": 429}},
]


@pytest.mark.parametrize("body", BROKEN, ids=str)
def test_a_broken_success_is_retried(body: object) -> None:
    assert isinstance(reply(body), Retry)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 529])
def test_what_passes_is_retried(status: int) -> None:
    got = reply({"error": {"message": "busy"}}, status, {"retry-after": "7"})
    assert isinstance(got, Retry)
    assert got.after_s == 7
    assert got.reason.startswith(str(status))
    assert got.reason.endswith(": busy")


@pytest.mark.parametrize("status", [301, 307, 401, 402, 404, 405])
def test_what_concerns_every_call_is_fatal(status: int) -> None:
    got = reply({"error": {"message": "The model `x` does not exist."}}, status)
    assert isinstance(got, Fatal)
    assert not got.maybe


def test_a_forbidden_call_may_be_the_prompt() -> None:
    assert reply({}, 403) == Fatal("the server refuses the key, or its absence (403 Forbidden)", maybe=True)


def test_a_spent_quota_is_not_a_rate_limit() -> None:
    assert isinstance(reply({"error": {"code": "insufficient_quota", "message": "pay"}}, 429), Fatal)
    # Some servers word a limit per minute like that, so only the code counts.
    assert isinstance(reply({"error": "INSUFFICIENT QUOTA", "message": "too many at once"}, 429), Retry)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_refused_prompt_is_its_own_error(status: int) -> None:
    got = reply({"error": {"message": "maximum context length is\n 2048 tokens"}}, status)
    assert isinstance(got, Generation)
    assert got.finish == "error"
    assert got.error.startswith(f"the server refuses the prompt: {status} ")
    assert got.error.endswith(": maximum context length is 2048 tokens")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"error": {"message": "words"}}, ": words"),
        ({"error": "words"}, ": words"),
        ({"message": "words"}, ": words"),
        ({"detail": "words"}, ": words"),
        ({"detail": [{"loc": ["body"]}]}, ""),
        (b"<html>nginx</html>", ""),
        ({"error": {"message": "w" * 1000}}, ": " + "w" * 300),
        ({"error": {"message": "your key sk-very-secret is wrong"}}, ": your key *** is wrong"),
        ({"error": {"message": "x" * 295 + "sk-very-secret"}}, ": " + "x" * 295 + "***"),
    ],
)
def test_the_server_is_quoted_shortened_and_without_the_key(body: object, said: str) -> None:
    got = reply(body, 500)
    assert isinstance(got, Retry)
    assert got.reason == f"500 Internal Server Error{said}"


def test_nothing_is_quoted_where_servers_show_parts_of_keys() -> None:
    for status in (401, 403):
        got = reply({"error": {"message": "Incorrect API key provided: sk-ver***cret"}}, status)
        assert isinstance(got, Fatal)
        assert "sk-" not in got.reason


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after("12") == 12
    assert retry_after(" 0 ") == 0
    assert retry_after(formatdate(time.time() + 30, usegmt=True)) == pytest.approx(30, abs=2)
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") < 0
    assert retry_after("soon") == retry_after("") == retry_after("-3") == 0
