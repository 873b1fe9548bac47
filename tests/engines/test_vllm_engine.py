"""The text engine with the real vLLM and SmolLM2: one engine for the whole file, which the last tests kill."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lancer.engines.chat_tokens import ChatTokens, TokenPrompt
from lancer.engines.embedded import resolve_model
from lancer.engines.protocols import Generation, Message, Sampling
from lancer.engines.vllm_engine import CPU_BLOCK_SIZE, VllmConfig, VllmEngine
from lancer.errors import EngineError, SetupError, UsageError
from lancer.prompts.judge import CHOICES, LAYOUTS, messages_of, schema
from tests.clocks import check_age

# vLLM and what it imports warn about themselves.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]

SMALL: dict[str, Any] = {
    "model": "embedded:smollm2",
    "dtype": "float32",  # to be compared with transformers
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "kv_cache_gib": 0.5,
}
PASSAGE = "The Danube rises in the Black Forest, flows through ten countries and ends in the Black Sea. " * 8


@pytest.fixture(scope="module")
def engine() -> Iterator[VllmEngine]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = VllmEngine(VllmConfig(**SMALL))
    yield engine
    engine.close()


def ask(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


@cache
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(resolve_model("embedded:smollm2").path_or_id, local_files_only=True)


@pytest.fixture(scope="module")
def reference() -> Callable[[list[int]], Any]:
    """Token ids → log-probabilities of what follows each, of shape (tokens, vocabulary): transformers, no cache."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(resolve_model("embedded:smollm2").path_or_id, dtype=torch.float32)

    def logprobs(ids: list[int]) -> Any:
        with torch.no_grad():
            return torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1).numpy()

    return logprobs


def about_rivers(question: str, *, layout: str = "shared-prefix", scored: str | None = None) -> list[Message]:
    filled = LAYOUTS[layout].prompt(request="Report on rivers.", document=PASSAGE, sub_questions=[question])
    return messages_of(filled, scored=scored)


def expected_scores(reference: Callable[[list[int]], Any], prompt: list[Message]) -> list[float]:
    encoded = ChatTokens(tokenizer(), {}, CPU_BLOCK_SIZE).encode(prompt, score=True)
    assert encoded.scored is not None
    logprobs = reference(encoded.ids)
    return [logprobs[i - 1, encoded.ids[i]] for i in range(*encoded.scored)]


def test_answers_are_sensible_and_in_order(engine: VllmEngine) -> None:
    prompts = [ask(f"What is the capital of {country}?") for country in ("France", "Germany", "Japan")]
    answers = engine.generate(prompts, Sampling(max_tokens=30))
    for answer, city in zip(answers, ("Paris", "Berlin", "Tokyo"), strict=True):
        assert city in answer.text
        assert (answer.error, answer.finish) == ("", "stop")
    assert engine.generate([], Sampling(max_tokens=1)) == []


def test_choice_restricts_the_output(engine: VllmEngine) -> None:
    prompts = [ask(f"{PASSAGE}\nHow long is river {i}? Rate from 0 to 5.") for i in range(12)]
    ratings = engine.generate(prompts, Sampling(max_tokens=2, choice=("0", "1", "2", "3", "4", "5")))
    assert {rating.text for rating in ratings} <= set("012345")
    words = engine.generate(prompts[:1], Sampling(max_tokens=20, choice=("partly covered", "not covered")))
    assert words[0].text in ("partly covered", "not covered")


def test_json_follows_its_schema(engine: VllmEngine) -> None:
    questions = ["Where does it rise?", "Where does it end?", "Who sails on it?"]
    filled = LAYOUTS["per-document"].prompt(request=None, document=PASSAGE, sub_questions=questions)
    sampling = Sampling(max_tokens=60, json_schema=json.dumps(schema(3)))
    answer = engine.generate([messages_of(filled)], sampling)[0]
    ratings = json.loads(answer.text)
    assert list(ratings) == ["1", "2", "3"]
    assert set(ratings.values()) <= set(range(6))
    assert (answer.finish, "\n" in answer.text) == ("stop", False)


@pytest.mark.parametrize("restricted", [False, True])
def test_logprobs_are_the_models_own_in_the_order_asked_for(
    engine: VllmEngine, reference: Callable[[list[int]], Any], restricted: bool
) -> None:
    prompts = [about_rivers(question) for question in ("Where does it rise?", "How long is it?")]
    asked = ("5", "0", "1", "2", "3", "4", "\n")
    sampling = Sampling(max_tokens=2, temperature=1.0, choice=CHOICES if restricted else None, logprobs_of=asked)
    for prompt, answer in zip(prompts, engine.generate(prompts, sampling), strict=True):
        ids = ChatTokens(tokenizer(), {}, CPU_BLOCK_SIZE).encode(prompt).ids
        own = reference(ids)[-1]
        assert answer.logprobs == pytest.approx([own[tokenizer().encode(text)[0]] for text in asked], abs=2e-3)
        assert not restricted or (answer.text in CHOICES and answer.finish == "stop" and answer.output_tokens == 1)


def test_scores_are_the_models_own_whatever_is_cached(
    engine: VllmEngine, reference: Callable[[list[int]], Any]
) -> None:
    score = Sampling(max_tokens=1, score=True)
    questions = [
        "Which countries does it flow through, from its source in the hills to its mouth, past which cities, and who "
        "has lived along it since the days of the Romans?",
        "Where?",
        "Where? And how did it come to be called so?",
    ]
    prompts = [about_rivers(question, scored="sub_question") for question in questions]
    cold = engine.generate(prompts[:1], score)[0]
    warm = engine.generate(prompts, score)  # the first one again: a block of its question is cached
    for prompt, answer in zip([prompts[0], *prompts], [cold, *warm], strict=True):
        assert (answer.error, answer.text, answer.finish) == ("", "", "stop")
        assert answer.logprobs == pytest.approx(expected_scores(reference, prompt), abs=2e-3)
    assert [answer.cached_tokens > 200 for answer in warm] == [False, True, True]
    assert warm[1].cached_tokens % CPU_BLOCK_SIZE == 0
    assert warm[1].prompt_tokens - warm[1].cached_tokens < 3 * CPU_BLOCK_SIZE


def test_scores_of_a_document_after_its_question(engine: VllmEngine, reference: Callable[[list[int]], Any]) -> None:
    prompt = about_rivers("Where does it end?", layout="published", scored="document")
    first, again = (engine.generate([prompt], Sampling(max_tokens=1, score=True))[0] for _ in range(2))
    expected = expected_scores(reference, prompt)
    assert len(expected) > 100
    for answer in (first, again):
        assert answer.logprobs == pytest.approx(expected, abs=2e-3)


def test_what_has_no_logprobs_fails_alone(engine: VllmEngine) -> None:
    prompt = ask("Say hi.")
    several = engine.generate([prompt], Sampling(max_tokens=1, logprobs_of=("0", "partly covered")))[0]
    assert "'partly covered' is not one token" in several.error
    grammar = Sampling(max_tokens=9, choice=("partly covered", "not"), logprobs_of=("0",))
    assert "choice whose strings are one token each" in engine.generate([prompt], grammar)[0].error
    both = Sampling(max_tokens=1, score=True, logprobs_of=("0",))
    assert "scored has no output" in engine.generate([prompt], both)[0].error
    unmarked = engine.generate(
        [prompt, about_rivers("Why?", scored="sub_question")], Sampling(max_tokens=1, score=True)
    )
    assert "marked" in unmarked[0].error
    assert (unmarked[1].error, len(unmarked[1].logprobs) > 0) == ("", True)


def test_padding_gives_way_to_the_length_of_the_model(engine: VllmEngine) -> None:
    words = next(n for n in range(700, 1000) if len(_padded(n).ids) > 1023 >= len(_padded(n).ids) - _padded(n).padding)
    answer = engine.generate([_long(words)], Sampling(max_tokens=1))[0]
    assert answer.error == ""
    assert answer.prompt_tokens == len(_padded(words).ids) - _padded(words).padding


def _long(words: int) -> list[Message]:
    filled = LAYOUTS["shared-prefix"].prompt(request=None, document="word " * words, sub_questions=["Why?"])
    return messages_of(filled)


def _padded(words: int) -> TokenPrompt:
    return ChatTokens(tokenizer(), {}, CPU_BLOCK_SIZE).encode(_long(words))


def test_tokens_are_the_tokenizers(engine: VllmEngine) -> None:
    prompt = ask("Name three rivers.")
    full = engine.generate([prompt], Sampling(max_tokens=60))[0]
    cut = engine.generate([prompt], Sampling(max_tokens=5))[0]
    ids = tokenizer().apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
    assert full.prompt_tokens == cut.prompt_tokens == len(ids)
    assert (cut.output_tokens, cut.finish) == (5, "length")
    assert full.text.startswith(cut.text)
    assert len(tokenizer()(cut.text).input_ids) == 5


def test_a_shared_prefix_is_cached(engine: VllmEngine) -> None:
    def judge(question: str) -> Generation:
        return engine.generate([ask(f"Prefix of this test. {PASSAGE}\n{question}")], Sampling(max_tokens=1))[0]

    assert judge("Where does it rise?").cached_tokens < 60  # at most the system message
    second = judge("Where does it end?")
    assert second.prompt_tokens - 64 <= second.cached_tokens < second.prompt_tokens


def test_an_overlong_prompt_fails_alone(engine: VllmEngine) -> None:
    long, fits = engine.generate([ask("word " * 1100), ask("Say hi.")], Sampling(max_tokens=10))
    assert long.finish == "error"
    assert long.text == ""
    assert "exceeds 1014 (max_model_len 1024 - max_tokens 10)" in long.error
    assert (fits.error, fits.text != "") == ("", True)


def test_what_the_template_or_vllm_refuses_fails_alone(engine: VllmEngine) -> None:
    broken: Any = [{"role": "user", "content": 3}]
    refused, fits = engine.generate([broken, ask("Say hi.")], Sampling(max_tokens=5))
    assert "the chat template refuses the prompt" in refused.error
    assert fits.error == ""
    empty = engine.generate([ask("Say hi.")], Sampling(max_tokens=5, choice=()))[0]
    assert "vLLM refuses the prompt" in empty.error


def test_seeds_decide_what_is_sampled(engine: VllmEngine) -> None:
    def story(seed: int) -> str:
        return engine.generate([ask("Tell me a story.")], Sampling(max_tokens=12, temperature=1.0, seed=seed))[0].text

    story(1)  # from here on the prompt is cached: the arithmetic is the same every time
    assert story(1) == story(1)
    assert len({story(seed) for seed in range(1, 5)}) > 1


def test_many_callers_get_their_own_answers(engine: VllmEngine) -> None:
    before = engine.clock()

    def echo(number: int) -> list[Generation]:
        prompts = [ask(f"Repeat: {number}"), ask("word " * 2000), ask(f"Again: {number}")]
        return engine.generate(prompts, Sampling(max_tokens=8, choice=(f"{number}", f"number {number}")))

    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(echo, range(10, 26)))
    for number, (first, long, last) in zip(range(10, 26), answers, strict=True):
        assert {first.text, last.text} <= {f"{number}", f"number {number}"}
        assert long.finish == "error"
    assert engine.clock().calls == before.calls + 2 * 16


def test_lower_priority_values_go_first(engine: VllmEngine) -> None:
    prompts = [ask(f"Tell me about the number {i}.") for i in range(40)]
    idle = engine.clock().busy_s
    with ThreadPoolExecutor(1) as caller:
        bulk = caller.submit(engine.generate, prompts, Sampling(max_tokens=8), priority=5)
        while engine.clock().busy_s == idle:
            time.sleep(0.01)
        urgent = engine.generate([ask("Say hi.")], Sampling(max_tokens=4), priority=0)[0]
        assert not bulk.done()
        assert urgent.queue_s < max(answer.queue_s for answer in bulk.result()) / 2


def test_the_clock_follows_the_work(engine: VllmEngine) -> None:
    before = engine.clock()
    answer = engine.generate([ask("Count to five.")], Sampling(max_tokens=16))[0]
    time.sleep(0.05)  # the answer is there before its step ends
    after = engine.clock()
    assert after.startup_s == before.startup_s > 0
    assert after.tokens - before.tokens == answer.prompt_tokens + answer.output_tokens
    assert 0 < answer.run_s <= after.busy_s - before.busy_s + 0.05
    time.sleep(0.2)
    assert engine.clock().busy_s == after.busy_s, "idle is not busy"
    assert engine.clock().idle_s >= after.idle_s + 0.2


def test_a_dying_step_fails_everyone_once_and_for_all(engine: VllmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.engine.llm_engine import LLMEngine

    steps, real = iter(range(6)), LLMEngine.step

    def step(self: Any) -> Any:
        if next(steps, None) is None:
            raise RuntimeError("the device fell off the bus")
        return real(self)

    monkeypatch.setattr(LLMEngine, "step", step)
    with ThreadPoolExecutor(3) as callers:
        calls = [callers.submit(engine.generate, [ask("Count.")] * 8, Sampling(max_tokens=50)) for _ in range(3)]
    for call in calls:
        assert "the device fell off the bus" in str(call.exception())
        assert isinstance(call.exception(), EngineError)
    with pytest.raises(EngineError, match="died: RuntimeError: the device fell off the bus"):
        engine.generate([ask("Anyone there?")], Sampling(max_tokens=1))
    engine.close()
    engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "vllm-step"]
    assert multiprocessing.active_children() == []


def test_closing_fails_the_waiting_and_another_engine_can_start() -> None:
    began = time.monotonic()
    engine = VllmEngine(VllmConfig(**SMALL))
    engine.generate([ask("Count to five.")], Sampling(max_tokens=16))
    time.sleep(0.2)
    clock = check_age(engine, began)
    assert clock.idle_s >= 0.2
    with ThreadPoolExecutor(1) as caller:
        waiting = caller.submit(engine.generate, [ask("Count to a hundred.")] * 32, Sampling(max_tokens=200))
        while engine.clock().busy_s == clock.busy_s:
            time.sleep(0.01)
        engine.close()
    assert isinstance(waiting.exception(), EngineError)
    with pytest.raises(EngineError, match="is closed"):
        engine.generate([ask("Anyone there?")], Sampling(max_tokens=1))


def test_settings_that_cannot_work_are_explained(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="batch_invariant needs a GPU"):
        VllmEngine(VllmConfig(**SMALL, batch_invariant=True))
    with pytest.raises(SetupError, match="extra `gpu`"):
        VllmEngine(VllmConfig(**SMALL, num_gpus=1))
    with pytest.raises(UsageError, match="max_model_len 100000 is more than"):
        VllmEngine(VllmConfig(**{**SMALL, "max_model_len": 100_000}))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(SetupError, match="cannot be loaded"):
        VllmEngine(VllmConfig(model=str(tmp_path)))


def test_the_config_is_closed_and_knows_what_changes_results() -> None:
    for wrong in ({"max_model_len": 0}, {"replicas": 0}, {"gpu_memory_utilization": 1.5}, {"modle": "x"}):
        with pytest.raises(ValidationError):
            VllmConfig.model_validate({"model": "embedded:smollm2", **wrong})
    here = VllmConfig(model="embedded:smollm2")
    there = VllmConfig(model="embedded:smollm2", replicas=4, tensor_parallel_size=2, max_num_seqs=8, block_size=32)
    assert here.result_fields() == there.result_fields()
    for other in (
        {"dtype": "float32"},
        {"max_model_len": 512},
        {"block_size": 16},
        {"num_gpus": 1},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ):
        assert VllmConfig.model_validate({"model": "embedded:smollm2", **other}).result_fields() != here.result_fields()
