"""The HTTP engine against a real server on loopback that fails in every way servers do."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from email.utils import formatdate
from typing import Any

import pydantic
import pytest

from lancer.engines import http_engine
from lancer.engines.http_engine import HttpConfig, HttpEngine, backoff
from lancer.engines.protocols import Generation, Message, Sampling
from lancer.errors import EngineError, SetupError
from tests.clocks import check_age
from tests.http_servers import Reply, Request, Server, completion, serving

KEY = "sk-test-0123456789abcdef"
ONE = Sampling(max_tokens=1)
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 60,
    "total_tokens": 160,
    "prompt_tokens_details": {"cached_tokens": 96},
    "completion_tokens_details": {"reasoning_tokens": 59},
}


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_engine, "BACKOFF_S", 0.01)


def prompts(*texts: str) -> list[list[Message]]:
    return [[{"role": "user", "content": text}] for text in texts]


def echo(request: Request) -> Reply:
    return completion(request.prompt.upper(), usage=USAGE)


@contextmanager
def running(answer: Callable[[Request], Reply], **settings: Any) -> Iterator[tuple[HttpEngine, Server]]:
    with serving(answer) as server:
        engine = HttpEngine(HttpConfig(base_url=server.base_url, model="judge", **settings))
        try:
            yield engine, server
        finally:
            engine.close()


def first(reply: Reply, times: int = 1) -> Callable[[Request], Reply]:
    """Answers that begin with `times` failures."""
    return lambda request: reply if request.number < times else echo(request)


def error(status: int, message: str = "no", **headers: str) -> Reply:
    return Reply(status=status, content=json.dumps({"error": {"message": message}}).encode(), headers=headers)


def test_what_cannot_be_asked_over_http_fails_without_a_request() -> None:
    with running(echo) as (engine, server):
        got = engine.generate(prompts("one", "two"), Sampling(max_tokens=1, score=True))
        assert [g.finish for g in got] == ["error"] * 2
        assert "no log-probabilities of a prompt" in got[0].error
        assert engine.generate(prompts("three"), ONE)[0].text == "THREE"
    assert len(server.requests) == 1


def test_logprobs_come_back_with_the_answer() -> None:
    top = [{"token": "4", "logprob": -0.25}, {"token": "5", "logprob": -1.5}]

    def answer(request: Request) -> Reply:
        assert (request.body["logprobs"], request.body["top_logprobs"]) == (True, 20)
        content = [{"token": "4", "logprob": -0.25, "top_logprobs": top}]
        choice = {"message": {"content": "4"}, "finish_reason": "stop", "logprobs": {"content": content}}
        return Reply(content=json.dumps({"choices": [choice], "usage": USAGE}).encode())

    with running(answer) as (engine, _):
        (got,) = engine.generate(prompts("rate"), Sampling(max_tokens=1, logprobs_of=("5", "4", "0")))
    assert (got.text, got.logprobs) == ("4", (-1.5, -0.25, float("-inf")))


def test_a_call_is_posted_and_read() -> None:
    with running(echo, extra_body={"top_p": 0.5}) as (engine, server):
        (got,) = engine.generate(prompts("what is"), Sampling(max_tokens=3, choice=("0", "1")))
    assert (got.text, got.error, got.finish) == ("WHAT IS", "", "stop")
    assert (got.prompt_tokens, got.cached_tokens, got.output_tokens) == (100, 96, 60)
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert "Authorization" not in request.headers
    assert request.body == {
        "model": "judge",
        "messages": [{"role": "user", "content": "what is"}],
        "max_tokens": 3,
        "temperature": 0.0,
        "structured_outputs": {"choice": ["0", "1"]},
        "top_p": 0.5,
    }


def test_no_prompts_no_calls() -> None:
    with running(echo) as (engine, server):
        assert engine.generate([], ONE) == []
    assert server.requests == []


FAILURES = {
    "429": error(429),
    "429 with Retry-After": error(429, **{"Retry-After": "0"}),
    "500": error(500),
    "502 of a proxy": Reply(status=502, content=b"<html>Bad Gateway</html>"),
    "503": error(503),
    "slow": Reply(wait_s=30),
    "trickling": Reply(content=b" " * 1000, trickle_s=0.1),
    "cut off": Reply(content=b'{"choices": [{"message": {"content": "1"}}]}', cut=20),
    "nothing": Reply(content=b"x", cut=0),
    "reset": Reply(reset=True),
    "garbage": Reply(content=b'{"choices": [{"mess'),
    "a page": Reply(content=b"<html>Sign in</html>"),
    "bad gzip": Reply(content=b"plain", headers={"Content-Encoding": "gzip"}),
    "a hidden failure": Reply(content=b'{"error": {"code": 503, "message": "overloaded"}}'),
}


def timeout_for(name: str) -> float:
    return 1 if name in ("slow", "trickling") else 30


@pytest.mark.parametrize("name", FAILURES)
def test_what_passes_is_tried_again(name: str) -> None:
    with running(first(FAILURES[name], times=2), timeout_s=timeout_for(name), concurrency=1) as (engine, server):
        got = engine.generate(prompts("a", "b"), ONE)
    assert [(g.text, g.error) for g in got] == [("A", ""), ("B", "")]
    assert [r.prompt for r in server.requests] == ["a", "a", "a", "b"]


@pytest.mark.parametrize("name", FAILURES)
def test_what_does_not_pass_is_that_calls_error(name: str) -> None:
    def answer(request: Request) -> Reply:
        return FAILURES[name] if request.prompt == "bad" else echo(request)

    with running(answer, timeout_s=timeout_for(name), retries=1) as (engine, server):
        good, bad, other = engine.generate(prompts("good", "bad", "other"), ONE)
    assert [(g.text, g.error) for g in (good, other)] == [("GOOD", ""), ("OTHER", "")]
    assert (bad.text, bad.finish) == ("", "error")
    assert bad.error.endswith("(attempt 2 of 2)")
    assert len(server.requests) == 4


def test_retry_after_in_seconds_is_waited_for() -> None:
    with running(first(error(429, **{"Retry-After": "1"}))) as (engine, server):
        (got,) = engine.generate(prompts("a"), ONE)
    assert 1 <= server.arrivals[1] - server.arrivals[0] < 2
    assert got.queue_s >= 1, "waiting is queueing"
    assert got.run_s < 0.5


def test_retry_after_as_a_date_is_waited_for() -> None:
    def answer(request: Request) -> Reply:
        if request.number:
            return echo(request)
        return error(503, **{"Retry-After": formatdate(time.time() + 2, usegmt=True)})  # whole seconds: 1 to 2 from now

    with running(answer) as (engine, server):
        assert engine.generate(prompts("a"), ONE)[0].text == "A"
    assert 0.9 <= server.arrivals[1] - server.arrivals[0] < 3


def test_a_server_that_asks_to_wait_for_hours_is_not_waited_for() -> None:
    with running(first(error(429, "daily limit", **{"Retry-After": "7200"}))) as (engine, server):
        bad, good = (engine.generate(prompts(text), ONE)[0] for text in "ab")
    assert bad.error == "429 Too Many Requests: daily limit; it asks to wait 7200 s (attempt 1 of 6)"
    assert good.text == "B"
    assert len(server.requests) == 2


def test_backoff_doubles_with_jitter_up_to_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_engine, "BACKOFF_S", 0.5)
    for attempt, longest in [(1, 0.5), (2, 1), (3, 2), (7, 32), (8, 60), (100, 60)]:
        waits = [backoff(attempt) for _ in range(200)]
        assert longest / 2 <= min(waits) < max(waits) <= longest
        assert max(waits) - min(waits) > longest / 4


def test_a_refused_prompt_fails_alone() -> None:
    def answer(request: Request) -> Reply:
        return error(400, "maximum context length is 2048") if len(request.prompt) > 5 else echo(request)

    with running(answer) as (engine, server):
        short, long = engine.generate(prompts("short", "long" * 9), ONE)
    assert short.text == "SHORT"
    assert long.error == "the server refuses the prompt: 400 Bad Request: maximum context length is 2048"
    assert len(server.requests) == 2, "it is not tried again"


FATAL = {
    "key": (error(401, "wrong key"), "refuses the key"),
    "forbidden": (error(403), "refuses the key"),
    "payment": (error(402, "no credit"), "402 Payment Required: no credit"),
    "model": (error(404, "The model `judge` does not exist."), "The model `judge` does not exist."),
    "address": (Reply(status=404, content=b'{"detail": "Not Found"}'), "check base_url"),
    "redirect": (Reply(status=301, headers={"Location": "https://example.org"}), "check base_url"),
    "quota": (Reply(status=429, content=b'{"error": {"code": "insufficient_quota", "message": "Pay."}}'), "quota"),
}


@pytest.mark.parametrize("name", FATAL)
def test_what_concerns_every_call_ends_the_engine_at_once(name: str) -> None:
    reply, said = FATAL[name]
    with running(lambda request: reply, concurrency=2) as (engine, server):
        with pytest.raises(EngineError, match=said) as caught:
            engine.generate(prompts(*"abcdefgh"), ONE)
        assert server.base_url in str(caught.value)
        with pytest.raises(EngineError, match=said):
            engine.generate(prompts("later"), ONE)
    # The second of two at once may still be on its way when the first one's answer ends the engine.
    assert len(server.requests) <= 2, "the calls that waited are not sent"


def test_a_forbidden_prompt_among_answered_ones_fails_alone() -> None:
    def answer(request: Request) -> Reply:
        return error(403) if request.prompt == "flagged" else echo(request)

    with running(answer, concurrency=1) as (engine, _):
        got = engine.generate(prompts("a", "flagged", "b"), ONE)
    assert [g.text for g in got] == ["A", "", "B"]
    assert "403" in got[1].error


def test_no_server_ends_the_engine() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        engine = HttpEngine(HttpConfig(base_url=address, model="judge", retries=1))
        with pytest.raises(EngineError, match=r"does not serve: no connection .*attempt 2 of 2"):
            engine.generate(prompts("a"), ONE)
        engine.close()


def test_a_server_that_fails_call_after_call_ends_the_engine() -> None:
    with running(lambda request: error(500, "engine dead"), retries=0, concurrency=4) as (engine, server):
        with pytest.raises(EngineError, match="does not serve: 500 Internal Server Error: engine dead"):
            engine.generate(prompts(*(str(i) for i in range(200))), ONE)
        assert len(server.requests) <= http_engine.DEAD_AFTER + 2 * 4


def test_failures_among_answers_do_not_end_the_engine() -> None:
    def answer(request: Request) -> Reply:
        return echo(request) if int(request.prompt) % 10 == 0 else error(500)

    with running(answer, retries=0, concurrency=4) as (engine, _):
        got = engine.generate(prompts(*(str(i) for i in range(200))), ONE)
    assert sum(not g.error for g in got) == 20


def test_missing_usage_counts_as_zero_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with running(lambda request: completion("3")) as (engine, _):
        got = engine.generate(prompts(*"abc"), ONE)
        assert engine.clock().tokens == 0
    assert {(g.text, g.prompt_tokens, g.cached_tokens, g.output_tokens) for g in got} == {("3", 0, 0, 0)}
    assert [r.message for r in caplog.records if r.levelno >= logging.WARNING] == [
        f"{engine.config.base_url} reports no token usage: it counts as 0"
    ]


def test_never_more_calls_in_flight_than_allowed() -> None:
    lock, now, most = threading.Lock(), 0, 0

    def answer(request: Request) -> Reply:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.03)
        with lock:
            now -= 1
        return echo(request)

    with running(answer, concurrency=4) as (engine, _):
        with ThreadPoolExecutor(3) as callers:
            list(callers.map(lambda n: engine.generate(prompts(*"abcdefgh"), ONE), range(3)))
        clock = engine.clock()
    assert most == 4
    assert clock.calls == 24
    assert clock.tokens == 24 * 160
    assert clock.busy_s >= 24 / 4 * 0.03


def test_the_lowest_priority_value_goes_first() -> None:
    started, go_on = threading.Event(), threading.Event()

    def answer(request: Request) -> Reply:
        started.set()
        go_on.wait(10)
        return echo(request)

    with running(answer, concurrency=1) as (engine, server), ThreadPoolExecutor(3) as callers:
        callers.submit(engine.generate, prompts("running"), ONE, priority=2)
        assert started.wait(10)
        late = [callers.submit(engine.generate, prompts("c1", "c2"), ONE, priority=2)]
        while engine._queue.qsize() < 2:
            time.sleep(0.01)
        late.append(callers.submit(engine.generate, prompts("a1", "a2"), ONE, priority=1))
        while engine._queue.qsize() < 4:
            time.sleep(0.01)
        go_on.set()
        for call in late:
            call.result(10)
    assert [r.prompt for r in server.requests] == ["running", "a1", "a2", "c1", "c2"]


def test_every_caller_gets_its_own_answers() -> None:
    def answer(request: Request) -> Reply:
        return error(500) if request.number % 7 == 0 else echo(request)

    def call(caller: int) -> list[str]:
        return [g.text for g in engine.generate(prompts(*(f"c{caller}-{i}" for i in range(25))), ONE)]

    with running(answer) as (engine, _), ThreadPoolExecutor(8) as callers:
        got = list(callers.map(call, range(8)))
    assert got == [[f"C{caller}-{i}" for i in range(25)] for caller in range(8)]


def test_waiting_and_running_are_told_apart() -> None:
    def answer(request: Request) -> Reply:
        time.sleep(0.1)
        return echo(request)

    began = time.monotonic()
    with running(answer, concurrency=1) as (engine, _):
        ready, since = engine.clock(), time.monotonic()
        one, two, three = engine.generate(prompts(*"abc"), ONE)
        time.sleep(0.2)
        clock = check_age(engine, since, ready)
    assert one.queue_s < 0.1 <= one.run_s
    assert 0.1 <= two.queue_s < 0.3 + one.run_s
    assert three.queue_s >= 0.2
    assert clock.busy_s == pytest.approx(one.run_s + two.run_s + three.run_s, abs=0.1)
    assert 0 < clock.startup_s < since - began
    assert clock.idle_s >= 0.2


def test_closing_frees_those_who_wait() -> None:
    with serving(lambda request: Reply(wait_s=60)) as server:
        engine = HttpEngine(HttpConfig(base_url=server.base_url, model="judge", concurrency=1))
        with ThreadPoolExecutor(1) as callers:
            call = callers.submit(engine.generate, prompts("in flight", "waiting"), ONE)
            while not server.requests:
                time.sleep(0.01)
            engine.close()
            with pytest.raises(EngineError, match="is closed"):
                call.result(10)
        engine.close()
        with pytest.raises(EngineError, match="is closed"):
            engine.generate(prompts("later"), ONE)


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY + "\n")
    with running(echo, api_key_env="JUDGE_KEY") as (engine, server):
        engine.generate(prompts("a"), ONE)
    assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"


def test_the_key_is_in_no_log_error_or_repr(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    said: list[str] = []

    def answer(request: Request) -> Reply:
        status = {"bad": 400, "busy": 500, "wrong": 401}.get(request.prompt)
        return error(status, f"header was {request.headers['Authorization']}") if status else echo(request)

    with running(answer, api_key_env="JUDGE_KEY", retries=1, concurrency=1) as (engine, server):
        for name in ("", "httpx", "httpcore", "lancer"):
            caplog.set_level(logging.DEBUG, name or None)
        said += [g.error for g in engine.generate(prompts("fine", "bad", "busy"), ONE)]
        with pytest.raises(EngineError) as caught:
            engine.generate(prompts("wrong"), ONE)
        said += [
            repr(engine),
            repr(engine.config),
            engine.config.model_dump_json(),
            repr(engine.config.result_fields()),
        ]
    unreachable = HttpEngine(
        HttpConfig(base_url="http://127.0.0.1:1/v1", model="m", api_key_env="JUDGE_KEY", retries=0)
    )
    with pytest.raises(EngineError) as gone:
        unreachable.generate(prompts("a"), ONE)
    unreachable.close()
    said += [repr(e) for e in (caught.value, gone.value, caught.value.__cause__, caught.value.__context__)]
    assert server.requests[0].headers["Authorization"].endswith(KEY), "it was in use"
    assert "***" in said[1]
    assert "***" in said[2]
    assert caplog.records, "requests and failures were logged"
    for text in [*said, caplog.text]:
        assert KEY not in text
        assert KEY[3:] not in text


@pytest.mark.parametrize("value", [None, "", "  ", f"two {KEY}", f"{KEY}\n{KEY}", f"{KEY}é"])
def test_an_unusable_key_is_a_setup_error(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("JUDGE_KEY", value)
    with pytest.raises(SetupError, match="JUDGE_KEY") as caught:
        HttpEngine(HttpConfig(base_url="http://127.0.0.1:1/v1", model="m", api_key_env="JUDGE_KEY"))
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"api_key_env": KEY}, "name of an environment variable"),
        ({"base_url": f"http://user:{KEY}@host/v1"}, "without user, key or query"),
        ({"base_url": f"https://host/v1?key={KEY}"}, "without user, key or query"),
        ({"base_url": "host:8000/v1"}, "http"),
        ({"base_url": "http:///v1"}, "http"),
        ({"base_url": "http://host:port/v1"}, "http"),
        ({"extra_body": {"stream": True}}, "must not set 'stream', the engine does$"),
        ({"extra_body": {"temperature": 1}}, "must not set 'temperature', the engine does; null leaves it out"),
        ({"extra_body": {"model": None}}, "must not set 'model'"),
    ],
)
def test_a_wrong_config_is_refused_without_quoting_keys(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        HttpConfig(**({"base_url": "http://host/v1", "model": "m"} | settings))
    (found,) = caught.value.errors()
    assert re.search(said, found["msg"])
    assert KEY not in str(caught.value)
    assert isinstance(found["input"], dict | HttpConfig), "a message quotes no single value"


def test_the_address_is_no_part_of_the_identity() -> None:
    here = HttpConfig(base_url="http://127.0.0.1:8000/v1/", model="m", revision="abc", extra_body={"top_k": 1})
    there = HttpConfig(base_url="https://elsewhere/v1", model="m", revision="abc", extra_body={"top_k": 1}, retries=9)
    assert here.base_url == "http://127.0.0.1:8000/v1"
    assert here.result_fields() == there.result_fields()
    room = {"tokenizer": None, "tokenizer_revision": None, "max_model_len": None}
    assert here.result_fields() == {"model": "m", "revision": "abc", "extra_body": {"top_k": 1}, "room": room}


def test_a_failed_call_is_a_whole_generation() -> None:
    with running(lambda request: error(400)) as (engine, _):
        (got,) = engine.generate(prompts("a"), ONE)
    assert got == Generation(text="", error=got.error, finish="error", queue_s=got.queue_s, run_s=got.run_s)


@pytest.mark.parametrize(("finish", "text"), [("length", "<think>It names 3"), ("stop", "It names 3")])
def test_thinking_that_the_template_opened_and_the_limit_ended_is_marked(finish: str, text: str) -> None:
    opens = {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}<think>"}
    settings = {"tokenizer": "embedded:smollm2", "extra_body": {"chat_template_kwargs": opens}}
    with running(lambda request: completion("It names 3", finish=finish), **settings) as (engine, _):
        assert engine.generate(prompts("rate"), Sampling(max_tokens=9))[0].text == text
