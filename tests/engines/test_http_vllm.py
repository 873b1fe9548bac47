"""The HTTP engine against `vllm serve` itself, through a proxy that loses, delays and breaks what passes."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from lancer.engines.embedded import resolve_model
from lancer.engines.http_engine import HttpConfig, HttpEngine
from lancer.engines.protocols import Sampling
from lancer.engines.vllm_engine import VllmConfig, dtype_on_cpu
from lancer.errors import EngineError
from lancer.prompts import judge
from tests.http_servers import Reply, Request, serving

pytestmark = pytest.mark.vllm

START_S = 600.0  # 139 s were seen on a busy machine
KEY = "sk-loopback-0123456789"
LENGTH = 1024
RATE = Sampling(max_tokens=1, choice=judge.CHOICES)


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """SmolLM2 under the name `smollm2`, with a key, in a process group of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    model = resolve_model("embedded:smollm2").path_or_id
    # What `vllm serve` runs. That command asks for the version of package `vllm`, which the CPU build does not have.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--served-model-name", "smollm2"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(LENGTH), "--block-size", "32"]
    command += ["--enforce-eager", "--enable-prompt-tokens-details", "--max-num-seqs", "32"]
    # As our own engine has it: one process less that imports vLLM, and the type that this CPU computes faster.
    command += ["--distributed-executor-backend", "uni", "--dtype", dtype_on_cpu(VllmConfig(model=model))]
    environment = os.environ | {
        "VLLM_API_KEY": KEY,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
    }
    log = tmp_path_factory.mktemp("vllm") / "log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            command, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(f"{address}/health", server, log)
        yield f"{address}/v1"
    finally:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(30)
        with suppress(ProcessLookupError):  # the engine is a process of its own in the group, and may be left
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(30)


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    pytest.fail(f"vllm serve did not start: {log.read_text(errors='replace')[-3000:]}")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_TEST_KEY", KEY)


def config(base_url: str, **settings: object) -> HttpConfig:
    return HttpConfig.model_validate(
        {"base_url": base_url, "model": "smollm2", "api_key_env": "VLLM_TEST_KEY", "timeout_s": 120} | settings
    )


DOCUMENTS = [f"Document {d}. " + "Street trees cool hot cities by shade and by evaporation. " * 12 for d in range(6)]
PROMPTS = [
    judge.render(request="Report on trees.", document=document, sub_question=f"How do trees help with {topic}?")
    for document in DOCUMENTS
    for topic in ("heat", "floods", "noise", "air", "birds", "crime", "health", "budgets")
]
ASKED = [prompt[-1]["content"] for prompt in PROMPTS]


def test_judging_through_failures_counts_every_answer_once(base_url: str) -> None:
    broken = ("429", "500", "slow", "cut off", "garbage", "reset", "fine", "fine")
    seen: set[str] = set()
    upstream = httpx.Client(timeout=120, limits=httpx.Limits(max_connections=8))

    def proxy(request: Request) -> Reply:
        kind = "fine"
        if request.prompt not in seen:  # each first attempt has its own misfortune
            seen.add(request.prompt)
            kind = broken[ASKED.index(request.prompt) % len(broken)]
        if kind == "429":
            return Reply(status=429, headers={"Retry-After": "1"})
        if kind == "500":
            return Reply(status=500, content=b'{"error": {"message": "injected"}}')
        if kind == "slow":
            return Reply(wait_s=60)
        if kind == "garbage":
            return Reply(content=b'{"choices": [{')
        if kind == "reset":
            return Reply(reset=True)
        headers = {"Authorization": request.headers["Authorization"], "Content-Type": "application/json"}
        answer = upstream.post(f"{base_url}/chat/completions", content=request.content, headers=headers)
        return Reply(status=answer.status_code, content=answer.content, cut=30 if kind == "cut off" else None)

    with serving(proxy) as server, upstream:
        engine = HttpEngine(config(server.base_url, concurrency=8, timeout_s=20))
        with ThreadPoolExecutor(4) as callers:
            parts = [PROMPTS[i : i + 12] for i in range(0, len(PROMPTS), 12)]
            got = [g for part in callers.map(lambda p: engine.generate(p, RATE), parts) for g in part]
        clock = engine.clock()
        engine.close()
    assert [g.error for g in got] == [""] * len(PROMPTS)
    assert {g.text for g in got} <= set(judge.CHOICES), "structured outputs hold"
    assert all(g.output_tokens >= 1 and 150 < g.prompt_tokens < LENGTH for g in got)
    assert sum(g.cached_tokens for g in got) > 0.4 * sum(g.prompt_tokens for g in got)
    assert clock.calls == len(PROMPTS)
    assert clock.tokens == sum(g.prompt_tokens + g.output_tokens for g in got)
    failures = len(PROMPTS) * 6 // len(broken)
    assert len(server.requests) == len(PROMPTS) + failures
    for prompt, generation in zip(PROMPTS, got, strict=True):
        kind = broken[PROMPTS.index(prompt) % len(broken)]
        assert generation.queue_s >= (1 if kind == "429" else 0)
        assert generation.run_s >= (20 if kind == "slow" else 0)


def test_what_vllm_refuses(base_url: str) -> None:
    engine = HttpEngine(config(base_url))
    long = judge.render(request=None, document="tree " * 3 * LENGTH, sub_question="Why?")
    fine, refused = engine.generate([PROMPTS[0], long], RATE)
    engine.close()
    assert fine.text in judge.CHOICES
    assert (refused.text, refused.finish) == ("", "error")
    assert "maximum context length" in refused.error

    nameless = HttpEngine(config(base_url, model="other"))
    with pytest.raises(EngineError, match=r"The model `other` does not exist"):
        nameless.generate(PROMPTS[:1], RATE)
    nameless.close()

    keyless = HttpEngine(config(base_url, api_key_env=None))
    with pytest.raises(EngineError, match="refuses the key, or its absence"):
        keyless.generate(PROMPTS[:1], RATE)
    keyless.close()


def test_free_text_up_to_the_limit(base_url: str) -> None:
    engine = HttpEngine(config(base_url, extra_body={"max_tokens": None, "max_completion_tokens": 5}))
    (got,) = engine.generate(PROMPTS[:1], Sampling(max_tokens=3, temperature=0.7, seed=1))
    engine.close()
    assert (got.finish, got.output_tokens) == ("length", 5)
    assert got.text


def test_json_follows_its_schema(base_url: str) -> None:
    layout = judge.layout_of("per-document")
    asked = [
        judge.messages_of(layout.prompt(request=None, document=document, sub_questions=["Why?", "How?", "Where?"]))
        for document in DOCUMENTS[:3]
    ]
    engine = HttpEngine(config(base_url))
    got = engine.generate(asked, Sampling(max_tokens=200, json_schema=json.dumps(judge.schema(3))))
    engine.close()
    assert [g.error for g in got] == [""] * 3
    for answer in (json.loads(g.text) for g in got):
        assert list(answer) == ["1", "2", "3"]
        assert set(answer.values()) <= set(range(6))


def test_logprobs_are_those_of_the_likeliest_tokens(base_url: str) -> None:
    engine = HttpEngine(config(base_url))
    sampling = Sampling(max_tokens=1, logprobs_of=(*judge.CHOICES, "no token"))
    got = engine.generate(PROMPTS[:4], sampling)
    engine.close()
    assert [g.error for g in got] == [""] * 4
    for generation in got:
        *ratings, absent = generation.logprobs
        assert len(ratings) == 6
        assert absent == -math.inf
        assert 0 < sum(math.exp(p) for p in ratings) <= 1 + 1e-6
        if generation.text in judge.CHOICES:
            assert max(ratings) == ratings[int(generation.text)]
