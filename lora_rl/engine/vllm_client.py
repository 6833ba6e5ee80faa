"""Starts vLLM, and hands it requests in a way that makes every forward pass a function of the requests alone."""

import asyncio
import itertools
import os
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, TypeVar

from vllm import AsyncEngineArgs, SamplingParams
from vllm.inputs import tokens_input
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.platforms import current_platform
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from lora_rl.config import EngineConfig
from lora_rl.engine.shared_memory import forget_names
from lora_rl.engine.stop_texts import Stops, stops_of
from lora_rl.errors import EngineDied, EngineError
from lora_rl.process_log import where_logged

T = TypeVar("T")

GIB = 2**30
ALIVE_POLL_S = 0.5
DYING_S = 20.0
"""Within this vLLM says that it is dead, after one of its workers has died: it ends the others first, and answers calls
meanwhile with errors of many texts."""
CPU_BATCH_TOKENS = 4096
"""Tokens of one forward pass on a CPU."""


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """One answer wanted from vLLM."""

    prompt_tokens: list[int]
    params: SamplingParams
    lora: LoRARequest | None
    salt: str
    """Cached prefixes are shared only between requests of one salt."""


def start_vllm(
    *, model_path: str, dtype: str, engine: EngineConfig, max_rank: int, capacity: int, seed: int, sleeps: bool
) -> AsyncLLM:
    """A vLLM engine for `capacity` adapters of rank up to `max_rank`. Takes 20 s to minutes; blocks.

    `sleeps` says whether its memory can be moved off a GPU, which needs an allocator of vLLM's.

    Its processes die with the thread that calls this.
    """
    if not entry_points(group="vllm.general_plugins", name="lora_rl"):
        raise EngineError("lora-rl: not installed, so vLLM's processes cannot find its plugin; `pip install` it first")
    arguments: dict[str, Any] = {
        "model": model_path,
        "dtype": dtype,
        "seed": seed,
        "tensor_parallel_size": engine.tensor_parallel,
        "max_model_len": engine.max_model_len,
        "max_num_seqs": engine.max_num_seqs,
        "gpu_memory_utilization": engine.gpu_memory_utilization,
        "enforce_eager": engine.enforce_eager,
        "enable_prefix_caching": True,
        "enable_lora": True,
        "max_lora_rank": max_rank,
        # Equal, so that a loaded adapter never leaves its slot.
        "max_loras": capacity,
        "max_cpu_loras": capacity,
        "logprobs_mode": "processed_logprobs",
        "scheduler_cls": "lora_rl.engine.scheduler.AsyncStopTextScheduler",
        "worker_extension_cls": "lora_rl.engine.worker.LoadsAdapters",
        "disable_log_stats": True,
    }
    kv_cache_gib = engine.kv_cache_gib if current_platform.is_cpu() else engine.gpu_kv_cache_gib
    if kv_cache_gib is not None:
        arguments["kv_cache_memory_bytes"] = int(kv_cache_gib * GIB)
    if current_platform.is_cpu():
        arguments["scheduler_cls"] = "lora_rl.engine.scheduler.StopTextScheduler"
        # After a part of a prompt vLLM rewinds the request's generator, which a CPU generator cannot: no parts.
        arguments["enable_chunked_prefill"] = False
        arguments["max_num_batched_tokens"] = max(engine.max_model_len, engine.max_num_seqs, CPU_BATCH_TOKENS)
        # vLLM compiles a counting function for logprobs in spite of the rest: 20 s at the first probe.
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
    else:
        arguments["enable_sleep_mode"] = sleeps
        # Logits in bfloat16 are off by 0.03 on average, most of what would part the engine from the trainer.
        arguments["hf_overrides"] = {"head_dtype": "float32"}
    if engine.cuda_graph_sizes:
        # Decoding in whole graphs, short prefills in pieces: neither needs compilation. Launched from Python, the first
        # token of a new adapter takes five times as long.
        arguments["compilation_config"] = {
            "mode": "NONE",
            "cudagraph_mode": "FULL_AND_PIECEWISE",
            "cudagraph_capture_sizes": list(engine.cuda_graph_sizes),
        }
    if engine.tensor_parallel > 1:
        arguments["distributed_executor_backend"] = "mp"
    llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    forget_names()
    return llm


class VllmClient:
    """Requests to one AsyncLLM. Raises EngineDied where vLLM's processes have died."""

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self._batch = asyncio.Lock()
        self._numbers = itertools.count()

    async def run_batch(self, requests: Sequence[EngineRequest]) -> list[RequestOutput]:
        """The answers, in the order of `requests`. One batch runs at a time; cancelling aborts its requests.

        All are queued, in order, while the scheduler stands still: which of them share a forward pass then depends on
        nothing but the requests.
        """
        async with self._batch:
            return await self._run(requests, paused=True)

    async def run_beside(self, request: EngineRequest) -> RequestOutput:
        """The answer to one request, at once, also while a batch runs."""
        return (await self._run([request], paused=False))[0]

    async def add_lora(self, lora: LoRARequest) -> None:
        """Loads an adapter in every rank. Raises EngineError with a rank's reason; another may have loaded it."""
        adapter = (lora.lora_name, lora.lora_int_id, lora.lora_path)
        refusals = await self._answered(self._llm.collective_rpc("load_adapter", args=adapter))
        if refusal := next(filter(None, refusals), None):
            raise EngineError(f"{lora.lora_name}: vLLM refused the adapter: {refusal}; see {where_logged()}")

    async def remove_lora(self, lora_id: int) -> None:
        """Unloads an adapter; done also where it is not loaded."""
        await self._answered(self._llm.remove_lora(lora_id))

    async def sleep(self) -> None:
        """Moves weights and loaded adapters to the host and frees the KV cache; on a CPU only scheduling stops."""
        await self._answered(self._llm.sleep(level=1))

    async def wake(self) -> None:
        """Brings back what `sleep` moved."""
        await self._answered(self._llm.wake_up())

    def decode(self, tokens: list[int]) -> str:
        """Text of `tokens`, without special ones."""
        return self._llm.get_tokenizer().decode(tokens, skip_special_tokens=True)

    def stops_of(self, stops: Sequence[str]) -> Stops:
        """What ends an answer where `stops` are wanted. Raises EngineError for one that never could."""
        return stops_of(self._llm.get_tokenizer(), stops)

    @property
    def dead(self) -> bool:
        """Whether vLLM's processes have died: nothing will be answered any more."""
        return self._llm.errored

    def shutdown(self) -> None:
        """Ends vLLM's processes."""
        self._llm.shutdown()

    async def _answered(self, call: Awaitable[T]) -> T:
        """The answer to a call that is no request. vLLM fails requests when it dies, but never ends such a call."""
        answer = asyncio.ensure_future(call)
        try:
            while not answer.done():
                await asyncio.wait([answer], timeout=ALIVE_POLL_S)
                if self.dead and not answer.done():
                    raise _dead()
            return answer.result()
        except EngineDeadError as error:
            raise _dead() from error
        except EngineDied:
            raise
        except Exception as error:  # vLLM passes on whatever its processes raised
            if await self._dies():
                raise _dead() from error
            raise
        finally:
            answer.cancel()

    async def _dies(self) -> bool:
        """Whether vLLM is dead, or soon is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(DYING_S):
                while not self.dead:
                    await asyncio.sleep(ALIVE_POLL_S)
        return self.dead

    async def _run(self, requests: Sequence[EngineRequest], *, paused: bool) -> list[RequestOutput]:
        batch = next(self._numbers)
        ids = [f"{batch}-{number}" for number in range(len(requests))]
        try:
            collectors = await (self._submit_paused if paused else self._submit)(ids, requests)
            return [await _finished(collector) for collector in collectors]
        except EngineDeadError as error:
            raise _dead() from error
        except BaseException:
            await self._llm.abort(ids)
            raise

    async def _submit_paused(self, ids: list[str], requests: Sequence[EngineRequest]) -> list[Any]:
        try:
            await self._answered(self._llm.pause_generation(mode="keep", clear_cache=False))
            return await self._submit(ids, requests)
        finally:
            await self._answered(self._llm.resume_generation())

    async def _submit(self, ids: list[str], requests: Sequence[EngineRequest]) -> list[Any]:
        collectors = []
        for id, request in zip(ids, requests, strict=True):
            prompt = tokens_input(request.prompt_tokens, cache_salt=request.salt)
            collectors.append(await self._llm.add_request(id, prompt, request.params, lora_request=request.lora))
        return collectors


async def _finished(collector: Any) -> RequestOutput:
    output = await collector.get()
    while not output.finished:
        output = await collector.get()
    return output


def _dead() -> EngineDied:
    return EngineDied(
        f"engine: vLLM's processes have died, see {where_logged()}; start the engine again and publish the adapter"
    )
