"""An engine of two processes: it answers with the model's log-probabilities, and refuses, falls and rises as one."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from peft import PeftModel

from lora_rl.config import EngineConfig, StoreConfig
from lora_rl.engine.actor import EngineActor
from lora_rl.errors import EngineDied, EngineError
from tests.integration.engine.batches import SMALL_ENGINE, answers, make_requests
from tests.peft_adapters import PeftExporter, logp_gap
from tests.processes import running, the_children, wait_until
from tests.tolerances import PARITY

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(loop_scope="session")
async def pair(model_path: Path) -> AsyncIterator[EngineActor]:
    config = EngineConfig(**SMALL_ENGINE, tensor_parallel=2)
    actor = EngineActor(model_path=str(model_path), dtype="float32", engine=config, max_rank=4, slots=1)
    await actor.start()
    yield actor
    await actor.shutdown()


async def test_two_ranks_serve_the_model_fall_as_one_and_outlive_no_engine(
    pair: EngineActor, store: StoreConfig, exporter: PeftExporter
):
    ranks = the_children(os.getpid(), "VLLM::Worker_TP", 2)
    assert not [name for rank in ranks for name in shared_memory(rank) if Path(name).exists()]
    first, second = (exporter.export("wide", version, seed=version) for version in (1, 2))
    for adapter in (first, second):
        reply = await pair.publish(store=store, adapter=adapter)
        assert reply.probe_error < PARITY
        assert reply.probe_effect > 0.1
        assert await largest_gap(pair, adapter.label, exporter.model(seed=adapter.version)) < 5 * PARITY

    with pytest.raises(EngineError, match="vLLM refused the adapter: ValueError: no layer is named"):
        await pair.publish(store=store, adapter=exporter.export("wide", 3, edit_weights=misnamed))
    narrow = exporter.export("wide", 4, seed=5, rank=3)
    await pair.publish(store=store, adapter=narrow)
    assert await largest_gap(pair, narrow.label, exporter.model(seed=5, rank=3)) < 5 * PARITY

    ranks[1].kill()
    with pytest.raises(EngineDied):
        await until_dead(pair)
    await pair.start()
    assert await pair.serving() == {}
    await until_ended(ranks)
    await pair.publish(store=store, adapter=second)
    assert await largest_gap(pair, second.label, exporter.model(seed=2)) < 5 * PARITY

    ranks = the_children(os.getpid(), "VLLM::Worker_TP", 2)
    await pair.shutdown()
    await until_ended(ranks)


async def until_ended(ranks: list[psutil.Process]) -> None:
    await asyncio.to_thread(wait_until, lambda: not any(running(rank.pid) for rank in ranks), "end of both ranks")


async def largest_gap(engine: EngineActor, version: str, model: PeftModel) -> float:
    """Between the engine's log-probabilities of its answers and the model's."""
    requests = make_requests()
    drawn = zip(requests, await answers(engine, version, requests), strict=True)
    return max(logp_gap(model, request.prompt_tokens, answer.tokens, answer.logp) for request, answer in drawn)


async def until_dead(engine: EngineActor) -> None:
    """Asks until an answer fails: a death is noticed by the next step of the engine."""
    async with asyncio.timeout(120):
        while True:
            await answers(engine, "wide@4", max_response_tokens=1)


def misnamed(weights: bytes) -> bytes:
    return weights.replace(b"q_proj", b"q_prok")


def shared_memory(process: psutil.Process) -> list[str]:
    """Files of the memory that the process shares with others."""
    paths = [mapped.path for mapped in process.memory_maps() if mapped.path.startswith("/dev/shm/")]
    assert paths
    return [path.removesuffix(" (deleted)") for path in paths]
