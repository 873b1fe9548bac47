"""A text engine: vLLM in this process, fed continuously by many callers at once (Kwon et al., 2023).

vLLM's own blocking `LLM.generate` would serialise callers and drain the batch between calls. Here one thread owns the
`LLMEngine`: it admits whatever has arrived, takes a step, hands out what finished, and so on; callers wait on futures.
Requests of lower `priority` run first, prompts that share a prefix share its KV cache.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field

from lancer.closed import Closed
from lancer.engines.chat_tokens import ChatTokens, TokenPrompt
from lancer.engines.cores import own_cores
from lancer.engines.embedded import resolve_model
from lancer.engines.meter import Meter
from lancer.engines.product_rate import product_rates
from lancer.engines.protocols import EngineClock, Generation, Message, Sampling
from lancer.engines.vllm_calls import read_output, sampling_params
from lancer.errors import EngineDied, EngineError, LancerError, SetupError, UsageError

log = logging.getLogger(__name__)

# Requests handed to vLLM between two steps. One takes .2 ms, with a choice .8 ms: a flood must not stall the batch.
ADMIT_PER_STEP: Final = 128
# 20 documents x 10 sub-questions: twice the pairs/s of the default of 128, as more of a prefix is shared.
CPU_BLOCK_SIZE: Final = 32
GPU_BLOCK_SIZE: Final = 16  # vLLM's choice for most attention kernels

Dtype = Literal["auto", "bfloat16", "float32", "float16"]


class VllmConfig(Closed):
    """What vLLM runs, and where. `result_fields` says which of it can change a generation."""

    kind: Literal["vllm"] = "vllm"
    model: str
    revision: str | None = None
    dtype: Dtype = "auto"
    """auto = the model's own; on a CPU bfloat16 or float32, whichever it multiplies faster: name it where several kinds
    of processors work on one run."""
    max_model_len: int | None = Field(default=None, gt=0)
    chat_template_kwargs: dict[str, bool | str | int] = Field(default_factory=dict)
    batch_invariant: bool = False
    """Bit-equal results whatever else is in the batch; slower, and only on GPUs."""

    tensor_parallel_size: int = Field(default=1, gt=0)
    gpu_memory_utilization: float = Field(default=0.9, gt=0, le=1)
    kv_cache_gib: float = Field(default=2, gt=0)
    """On a CPU; on a GPU the cache is what `gpu_memory_utilization` leaves."""
    block_size: int | None = Field(default=None, gt=0)
    """Tokens per block of the prefix cache; None = 32 on a CPU, vLLM's choice on a GPU."""
    max_num_seqs: int = Field(default=256, gt=0)
    enforce_eager: bool = False
    """No compilation and no CUDA graphs. Always so on a CPU, where compiling takes minutes."""
    threads: int | None = Field(default=None, gt=0)
    """On a CPU; None = the cores that this process may use, shared out evenly among the replicas."""
    replicas: int = Field(default=1, gt=0)
    num_cpus: float = Field(default=0.5, ge=0)
    num_gpus: float = Field(default=0, ge=0)

    def result_fields(self) -> dict[str, object]:
        """What enters fingerprints, beside the resolved revision of the model.

        The rest is about place and speed: at most low bits depend on it, as they do on the batch. The size of a block
        decides how many newlines pad a prompt.
        """
        fields = {"model", "dtype", "max_model_len", "chat_template_kwargs", "batch_invariant"}
        own = self.model_dump(include=fields) | {"block_size": block_of(self)}
        return own | {"dtype": "the faster one"} if self.dtype == "auto" and not self.num_gpus else own


def block_of(config: VllmConfig) -> int:
    """Tokens per block of the prefix cache; on a GPU without `block_size` a guess, as vLLM chooses when it starts."""
    return config.block_size or (GPU_BLOCK_SIZE if config.num_gpus else CPU_BLOCK_SIZE)


@dataclass
class _Request:
    prompt: TokenPrompt
    sampling: Sampling
    params: Any
    priority: int
    number: int = 0
    submitted: float = 0.0
    repeated: bool = False
    done: Future[Generation] = field(default_factory=Future)


class VllmEngine:
    """A `TextEngine`. Close it when done: it owns a thread, and the model's memory.

    Raises:
        SetupError: this machine lacks vLLM, the right build of it, or the model.
        UsageError: the config asks for what the model does not have.
        EngineError: the engine did not start.
    """

    def __init__(self, config: VllmConfig) -> None:
        self._meter = Meter()
        self.config = config
        self._changed = threading.Condition()  # guards the next four
        self._inbox: list[_Request] = []
        self._ended = ""  # why no call is served any more
        self._closing = False
        self._order = itertools.count()
        self._running: dict[str, _Request] = {}  # of the stepping thread
        started: Future[tuple[ChatTokens, int]] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="vllm-step", daemon=True)
        self._thread.start()
        self._tokens, self._max_model_len = started.result()
        self._meter.ready()

    def generate(
        self, prompts: Sequence[Sequence[Message]], sampling: Sampling, *, priority: int = 0
    ) -> list[Generation]:
        """See `TextEngine.generate`."""
        try:
            params = sampling_params(sampling, self._tokens.token_of)
        except ValueError as error:
            return [_failed(f"vLLM cannot do what is asked: {error}") for _ in prompts]
        requests = [self._request(prompt, sampling, params, priority) for prompt in prompts]
        with self._changed:
            if self._ended:
                raise EngineDied(self._ended)
            now = time.monotonic()
            for request in requests:
                if not request.done.done():
                    request.submitted, request.number = now, next(self._order)
                    self._inbox.append(request)
            self._changed.notify()
        return [request.done.result() for request in requests]

    def clock(self) -> EngineClock:
        """Start-up until a call can run; busy = stepping with requests to serve; tokens of prompts and outputs."""
        return self._meter.clock()

    def close(self) -> None:
        """End the thread and free the model; waiting calls get EngineError. May be called again."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _request(self, prompt: Sequence[Message], sampling: Sampling, params: Any, priority: int) -> _Request:
        from jinja2 import TemplateError

        request = _Request(TokenPrompt([]), sampling, params, priority)
        room = self._max_model_len - max(1, sampling.max_tokens)
        try:
            request.prompt = self._tokens.encode(prompt, score=sampling.score, room=room)
        except (TemplateError, ValueError, TypeError) as error:
            request.done.set_result(_failed(f"the chat template refuses the prompt: {error}"))
            return request
        tokens = len(request.prompt.ids)
        if tokens > room:
            limit = f"max_model_len {self._max_model_len} - max_tokens {max(1, sampling.max_tokens)}"
            request.done.set_result(_failed(f"prompt of {tokens} tokens exceeds {room} ({limit})"))
        return request

    def _run(self, started: Future[tuple[ChatTokens, int]]) -> None:
        # The engine is built by the thread that steps it: the number of OpenMP threads belongs to a thread.
        try:
            engine = _start(self.config)
        except LancerError as error:
            started.set_exception(error)
            return
        vllm_config = engine.vllm_config
        block = vllm_config.cache_config.block_size
        tokens = ChatTokens(engine.get_tokenizer(), self.config.chat_template_kwargs, block)
        started.set_result((tokens, vllm_config.model_config.max_model_len))
        ended = f"vLLM engine {self.config.model!r} is closed"
        try:
            self._serve(engine)
        except Exception as error:
            log.exception("vLLM engine %r died", self.config.model)
            ended = f"vLLM engine {self.config.model!r} died: {type(error).__name__}: {error}"
        with self._changed:
            self._ended = ended
            waiting = [*self._running.values(), *self._inbox]
        for request in waiting:
            request.done.set_exception(EngineDied(ended))
        engine.engine_core.shutdown()

    def _serve(self, engine: Any) -> None:
        while self._wait():
            with self._meter:
                self._step(engine)

    def _wait(self) -> bool:
        """Until there is something to do; False = the engine is being closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._inbox or self._running or self._closing)
            return not self._closing

    def _step(self, engine: Any) -> None:
        with self._changed:
            self._inbox.sort(key=lambda request: (request.priority, request.number))
            admitted, self._inbox = self._inbox[:ADMIT_PER_STEP], self._inbox[ADMIT_PER_STEP:]
        for request in admitted:
            self._admit(engine, request)
        for output in engine.step():
            self._finish(output)

    def _admit(self, engine: Any, request: _Request) -> None:
        from vllm.exceptions import VLLMClientError
        from vllm.inputs import tokens_input

        name = f"{request.number:012d}"
        self._running[name] = request
        try:
            engine.add_request(name, tokens_input(request.prompt.ids), request.params, priority=request.priority)
        except (VLLMClientError, ValueError) as error:
            del self._running[name]
            request.done.set_result(_failed(f"vLLM refuses the prompt: {error}"))

    def _finish(self, output: Any) -> None:
        request, times = self._running.pop(output.request_id), output.metrics
        read = read_output(output, request.prompt, request.params)
        if read is None and not request.repeated:
            self._repeat(request)
            return
        read = read or _failed("vLLM gives no log-probabilities of the scored part")
        generation = replace(
            read,
            text=self._tokens.whole_output(read.text, request.sampling),
            queue_s=max(0.0, times.scheduled_ts - request.submitted),
            run_s=max(0.0, times.last_token_ts - times.scheduled_ts),
        )
        self._meter.count([generation])
        request.done.set_result(generation)

    def _repeat(self, request: _Request) -> None:
        """A part to be scored was cached, as of a prompt that was scored before: compute it again."""
        request.params = sampling_params(request.sampling, self._tokens.token_of, read_cache=False)
        request.repeated = True
        with self._changed:
            self._inbox.append(request)


def _failed(error: str) -> Generation:
    return Generation(text="", error=error, finish="error")


def _start(config: VllmConfig) -> Any:
    """Build vLLM's `LLMEngine` on the calling thread."""
    try:
        resolved = resolve_model(config.model, config.revision)
        _set_environment(config, is_local=Path(resolved.path_or_id).is_dir())
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.llm_engine import LLMEngine

        on_cpu = current_platform.is_cpu()
        _check_platform(config, on_cpu=on_cpu, has_device=bool(current_platform.device_type))
        arguments: dict[str, Any] = {
            "model": resolved.path_or_id,
            "revision": config.revision,
            "dtype": config.dtype,
            "max_model_len": config.max_model_len,
            "tensor_parallel_size": config.tensor_parallel_size,
            "distributed_executor_backend": "uni" if config.tensor_parallel_size == 1 else "mp",
            "gpu_memory_utilization": config.gpu_memory_utilization,
            "block_size": config.block_size,
            "max_num_seqs": config.max_num_seqs,
            "enforce_eager": config.enforce_eager or on_cpu,
            "enable_prefix_caching": True,
            "scheduling_policy": "priority",
            "use_tqdm_on_load": False,
            "disable_log_stats": False,  # without them requests carry no times
            # JSON without a bound on blanks lets a small model write blanks until its tokens are spent.
            "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
        }
        if on_cpu:
            import torch

            # Ray sets OMP_NUM_THREADS=1 for actors of less than two CPUs.
            torch.set_num_threads(config.threads or own_cores(config.replicas))
            arguments["dtype"] = dtype_on_cpu(config)
            arguments["kv_cache_memory_bytes"] = int(config.kv_cache_gib * 2**30)
            arguments["block_size"] = block_of(config)
        # As vLLM's own class for offline use: more tokens per step than a server's default.
        engine = LLMEngine.from_engine_args(EngineArgs(**arguments), usage_context=UsageContext.LLM_CLASS)
        if getattr(engine.get_tokenizer(), "chat_template", "") is None:
            raise SetupError(f"model {config.model!r} has no chat template; choose an instruction-tuned one")
        return engine
    except LancerError:
        raise
    except Exception as error:
        raise _explain(error, config) from error


def dtype_on_cpu(config: VllmConfig) -> Dtype:
    """What `dtype` means there. SmolLM2 on two cores, tokens/s of prompts and of output: on an Ice Lake Xeon (no AMX,
    no AVX512_BF16) 445 and 78 in float32, 228 and 43 in bfloat16; on an EPYC with AVX512_BF16 1,250 and 500 in float32,
    2,900 and 560 in bfloat16."""
    if config.dtype != "auto":
        return config.dtype
    rates = product_rates()
    dtype: Dtype = "bfloat16" if rates.bfloat16_is_faster else "float32"
    log.info("vLLM computes in %s: %.0f GFLOP/s in bfloat16, %.0f in float32", dtype, rates.bfloat16, rates.float32)
    return dtype


def _set_environment(config: VllmConfig, *, is_local: bool) -> None:
    """vLLM reads these when it is imported and when it starts."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["VLLM_BATCH_INVARIANT"] = "1" if config.batch_invariant else "0"
    os.environ.pop("VLLM_CPU_KVCACHE_SPACE", None)  # would override kv_cache_gib
    # Its warnings at start-up are about what is set here on purpose.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Threads that spin while they wait starve whatever else runs: 14-21 pairs/s against 3-5 on two busy cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if is_local:
        os.environ["HF_HUB_OFFLINE"] = "1"


def _check_platform(config: VllmConfig, *, on_cpu: bool, has_device: bool) -> None:
    if on_cpu and config.num_gpus:
        raise SetupError("num_gpus is set, but the CPU build of vLLM is installed; install lancer with the extra `gpu`")
    if on_cpu and config.batch_invariant:
        raise SetupError("batch_invariant needs a GPU: on a CPU the low bits depend on the batch")
    if not on_cpu and not has_device:
        raise SetupError(
            "the installed vLLM is the build for GPUs and finds none here; install lancer with the extra `cpu`"
        )


def _explain(error: Exception, config: VllmConfig) -> LancerError:
    """The sentence for a person, by what vLLM 0.29 is known to say."""
    said = str(error)
    if isinstance(error, ImportError):
        if error.name == "vllm":
            return SetupError("vLLM is not installed; install lancer with the extra `cpu` or, for GPUs, `gpu`")
        return SetupError(f"vLLM cannot be imported: {said}")
    if "torchvision::" in said:
        return SetupError(
            "torchvision beside a CPU torch breaks vLLM: `pip uninstall torchvision torchaudio torchcodec`"
        )
    if "derived max_model_len" in said:
        return UsageError(f"max_model_len {config.max_model_len} is more than model {config.model!r} allows")
    if "memory" in said.lower():
        remedy = "change kv_cache_gib (CPU) or gpu_memory_utilization (GPU), lower max_model_len, or free memory"
        return EngineError(f"vLLM and model {config.model!r} do not fit into memory; {remedy}: {said}")
    if isinstance(error, OSError) or "model weights" in said or "tokenizer" in said:
        return SetupError(f"model {config.model!r} cannot be loaded: {said}")
    return EngineError(f"vLLM did not start with model {config.model!r}: {type(error).__name__}: {said}")
