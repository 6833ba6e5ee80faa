"""An engine in bfloat16 under float32 adapters, whose processes are killed under it."""

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from lora_rl.config import EngineConfig, StoreConfig
from lora_rl.engine.actor import EngineActor
from lora_rl.errors import EngineDied
from tests.integration.engine.batches import SMALL_ENGINE, answers, make_requests, until_decoding
from tests.peft_adapters import PeftExporter
from tests.processes import named_children
from tests.tolerances import BF16_LOGP

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]


async def test_a_float32_adapter_serves_in_bfloat16_and_a_dead_engine_starts_again(
    model_path: Path, store: StoreConfig, exporter: PeftExporter
):
    others = set(vllm_processes())
    engine = EngineActor(
        model_path=str(model_path), dtype="bfloat16", engine=EngineConfig(**SMALL_ENGINE), max_rank=4, slots=1
    )
    await engine.start()
    adapter = exporter.export("coarse", 1)
    reply = await engine.publish(store=store, adapter=adapter)
    assert reply.probe_error < BF16_LOGP
    assert reply.probe_effect > BF16_LOGP
    first = await answers(engine, "coarse@1", make_requests(40))
    assert await answers(engine, "coarse@1", make_requests(40)) == first

    running = asyncio.create_task(answers(engine, "coarse@1", make_requests(40), max_response_tokens=400))
    await until_decoding(engine)
    for process in set(vllm_processes()) - others:
        process.kill()
    with pytest.raises(EngineDied):
        await running
    with pytest.raises(EngineDied):
        await answers(engine, "coarse@1")
    await engine.start()
    assert await engine.serving() == {}
    await engine.publish(store=store, adapter=exporter.export("coarse", 1))
    assert await answers(engine, "coarse@1", make_requests(40)) == first
    await engine.shutdown()


def vllm_processes() -> list[psutil.Process]:
    return named_children(os.getpid(), "VLLM")
