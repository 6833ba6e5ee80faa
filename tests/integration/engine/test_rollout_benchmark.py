"""The rollout benchmark on this engine: it calls what the product's own requests are made of."""

from argparse import Namespace

import pytest

from benchmarks.rollout import roll_out
from lora_rl.config import StoreConfig
from lora_rl.engine.actor import EngineActor
from tests.peft_adapters import PeftExporter

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]


async def test_it_counts_all_tokens_of_the_base_and_of_several_adapters(
    engine: EngineActor, store: StoreConfig, exporter: PeftExporter
):
    adapters = [exporter.export(f"bench-{seed}", 0, seed=seed) for seed in range(2)]
    for adapter in adapters:
        await engine.publish(store=store, adapter=adapter)
    size = Namespace(requests=6, tokens=5)
    for serving in ([], adapters):
        tokens, seconds = await roll_out(engine, serving, size, seed=0)
        assert 6 <= tokens <= 30
        assert seconds > 0
