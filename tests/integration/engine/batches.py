"""Batches for the engine tests, and what may be seen of an engine's inside."""

import asyncio
import time
from dataclasses import asdict
from typing import Any

from lora_rl.config import SamplingConfig
from lora_rl.engine import Completion, GenerateRequest
from lora_rl.engine.actor import EngineActor
from tests.processes import DEADLINE_S

SMALL_ENGINE: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 16, "kv_cache_gib": 0.25}
ANSWER_TOKENS = 48


def make_requests(count: int = 8, *, seed: int = 0) -> list[GenerateRequest]:
    """Groups of four with one prompt, of unequal lengths."""
    return [
        GenerateRequest(
            id=f"0/{n // 4}/{n % 4}", prompt_tokens=[5 + n // 4, *range(6, 9 + n // 4)], seed=seed * 1000 + n
        )
        for n in range(count)
    ]


async def answers(
    engine: EngineActor,
    version: str,
    requests: list[GenerateRequest] | None = None,
    *,
    batch_id: str = "batch",
    **sampling: Any,
) -> list[Completion]:
    """Answers of up to ANSWER_TOKENS tokens; `sampling` are fields of SamplingConfig."""
    sampling.setdefault("max_response_tokens", ANSWER_TOKENS)
    return await engine.generate(
        version=version,
        requests=requests or make_requests(),
        sampling=SamplingConfig(**sampling),
        batch_id=batch_id,
    )


def contents(completions: list[Completion]) -> list[dict[str, Any]]:
    """Tokens and log-probabilities, whatever version they are ascribed to."""
    return [
        {key: value for key, value in asdict(completion).items() if not key.startswith("adapter_")}
        for completion in completions
    ]


async def loaded_ids(engine: EngineActor) -> set[int]:
    """vLLM's own list of loaded adapters."""
    return await engine._started()._client._llm.list_loras()


async def until_decoding(engine: EngineActor) -> None:
    """Returns once vLLM has requests of ours, that is, once a batch was handed over."""
    deadline = time.monotonic() + DEADLINE_S
    while not engine._started()._client._llm.output_processor.has_unfinished_requests():
        assert time.monotonic() < deadline, "no batch reached vLLM"
        await asyncio.sleep(0.001)
