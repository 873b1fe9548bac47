"""Tokens per second of judging against plain vLLM: the second part of `gpu.sh`, where vLLM is installed.

A random model in the shape of Llama-3.2-1B (bfloat16; what it answers means nothing, one token is asked for) and random
documents of 350 words: 10 requests × 20 documents × 10 sub-questions. Both get the same chat prompts and take turns
request by request, each in a process of its own with half of the GPU:

    plain     `vllm.LLM.chat` at its defaults, the question before the document, as published
    plain_shared   the same with the document before the question
    ours      `VllmEngine`, document before question
    ratio, ratio_shared     of pairs per second, ours to each; medians over requests

`tokens_per_s` counts whole prompts, cached tokens too. `--tiny` is for a CPU and for tests.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from lancer.engines.protocols import Message, Sampling
from lancer.engines.vllm_engine import VllmConfig, VllmEngine
from lancer.prompts.judge import LAYOUTS, messages_of
from tests.benchmarks.processes import Served

WORDS: Final = 8_000
TEMPLATE: Final = "{% for m in messages %}[user] {{ m['content'] }} {% endfor %}[assistant]"


@dataclass(frozen=True)
class Scale:
    """How much is measured, and the shape of the model."""

    requests: int = 10
    documents: int = 20
    sub_questions: int = 10
    words: int = 350
    hidden_size: int = 2048
    intermediate_size: int = 8192
    num_hidden_layers: int = 16
    num_attention_heads: int = 32
    num_key_value_heads: int = 8


TINY: Final = Scale(2, 2, 3, 40, 128, 256, 2, 2, 2)


def build(folder: Path, scale: Scale) -> Path:
    """The model, and a tokenizer that makes one token of a word."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<unk>", "<end>", "\n", *(f"w{i}" for i in range(WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    make: Any = PreTrainedTokenizerFast
    fast = make(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=scale.hidden_size,
        intermediate_size=scale.intermediate_size,
        num_hidden_layers=scale.num_hidden_layers,
        num_attention_heads=scale.num_attention_heads,
        num_key_value_heads=scale.num_key_value_heads,
        max_position_embeddings=2048,
        eos_token_id=1,
        dtype="bfloat16",
    )
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def prompts_of(scale: Scale, layout: str) -> list[list[list[Message]]]:
    """By request: one prompt per pair."""
    random = np.random.default_rng(0)

    def text(words: int) -> str:
        return " ".join(f"w{i}" for i in random.integers(0, WORDS, words))

    return [
        [
            messages_of(LAYOUTS[layout].prompt(request=request, document=document, sub_questions=[question]))
            for document in documents
            for question in questions
        ]
        for request, documents, questions in (
            (
                text(20),
                [text(scale.words) for _ in range(scale.documents)],
                [text(12) for _ in range(scale.sub_questions)],
            )
            for _ in range(scale.requests)
        )
    ]


def serve_ours(folder: str) -> Callable[..., Any]:
    """prompts → number of prompt tokens."""
    engine = VllmEngine(VllmConfig(model=folder, max_model_len=2048, kv_cache_gib=0.5, gpu_memory_utilization=0.45))
    return lambda prompts: sum(g.prompt_tokens for g in engine.generate(prompts, Sampling(max_tokens=1)))


def serve_plain(folder: str) -> Callable[..., Any]:
    """The same, by vLLM's own class."""
    import torch

    on_cpu = not torch.cuda.is_available()
    if on_cpu:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # its second process waits for cores that others hold
    import vllm

    cache = {"kv_cache_memory_bytes": 2**29, "enforce_eager": True} if on_cpu else {"gpu_memory_utilization": 0.45}
    engine = vllm.LLM(folder, max_model_len=2048, **cache)
    parameters = vllm.SamplingParams(temperature=0, max_tokens=1)

    def chat(prompts: list[list[Message]]) -> int:
        plain = [[{"role": m["role"], "content": m["content"]} for m in prompt] for prompt in prompts]
        answers = engine.chat(plain, parameters, use_tqdm=False)  # type: ignore[arg-type]
        return sum(len(answer.prompt_token_ids or ()) for answer in answers)

    return chat


def measure(scale: Scale) -> dict[str, Any]:
    """The keys are those of the JSON output."""
    published, shared = prompts_of(scale, "published"), prompts_of(scale, "shared-prefix")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = str(build(Path(name), scale))
        # One after the other: each looks how much memory is free.
        plain = stack.enter_context(Served(serve_plain, folder))
        ours = stack.enter_context(Served(serve_ours, folder))
        ways = {"plain": (plain, published), "plain_shared": (plain, shared), "ours": (ours, shared)}
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        tokens = dict.fromkeys(ways, 0)
        for number in range(scale.requests):
            for name, (engine, prompts) in ways.items():
                count, spent, _ = engine.call(prompts[number])
                if number:  # the first warms up
                    seconds[name].append(spent)
                    tokens[name] += count
    pairs = scale.documents * scale.sub_questions
    ratio = {
        key: float(np.median(np.divide(seconds[name], seconds["ours"])))
        for key, name in (("ratio", "plain"), ("ratio_shared", "plain_shared"))
    }
    return {
        **{f"pairs_per_s_{name}": pairs / float(np.median(spent)) for name, spent in seconds.items()},
        **{f"tokens_per_s_{name}": tokens[name] / sum(spent) for name, spent in seconds.items()},
        **ratio,
    }


def main() -> None:
    """Prints the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    print(json.dumps({"benchmark": "judging", **measure(TINY if options.tiny else Scale())}))


if __name__ == "__main__":
    main()
