"""Two real engines on the CPU: every one serves what is published, and one that dies is started again alone."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect.logging import disable_run_logger

from lora_rl.cluster import roles
from lora_rl.cluster.actors import ActorGroup
from lora_rl.cluster.calls import call
from lora_rl.cluster.connect import connect, disconnect
from lora_rl.config import RunConfig, StoreConfig, load_config
from lora_rl.engine import PublishOutcome
from lora_rl.errors import EngineError
from lora_rl.models import resolve_model
from tasks.hot_load import serve
from tests.peft_adapters import PeftExporter

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def cluster(cluster_environment: dict[str, str]) -> Iterator[None]:
    connect(cluster_environment["RAY_ADDRESS"])
    yield
    disconnect()


@dataclass(frozen=True)
class At:
    """The part of an iteration that `serve` reads."""

    config: RunConfig
    model_path: Path
    store: StoreConfig


async def serving(engines: ActorGroup) -> list[list[str]]:
    return [list(await call(engine.serving, deadline_s=60)) for engine in engines.handles]


def vllm_processes() -> dict[int, psutil.Process]:
    """vLLM's process by that of its actor."""
    found = {}
    for process in psutil.process_iter(["name"]):
        if str(process.info["name"]).startswith("ray::EngineHost"):
            found[process.pid] = next(child for child in process.children() if "VLLM" in " ".join(child.cmdline()))
    return found


async def test_two_replicas_serve_what_is_published_and_a_dead_one_starts_again_alone(tmp_path: Path) -> None:
    config = load_config(ROOT / "examples" / "tiny.yaml", ["engine.replicas=2", f"store.uri=file://{tmp_path}"])
    at: Any = At(config, resolve_model(config.model.name), config.store)
    exporter = PeftExporter(at.model_path, at.store)
    with disable_run_logger():
        engines, replies = await serve(at, exporter.export("a", 1))
        assert [reply.outcome for reply in replies] == [PublishOutcome.LOADED] * 2

        broken = exporter.export("a", 2, edit_config=lambda values: values | {"lora_alpha": 80})
        with pytest.raises(EngineError, match=r"engine-0: a@2: probe disagrees"):
            await serve(at, broken)
        assert await serving(engines) == [["a@1"], ["a@1"]]

        before = vllm_processes()
        victim, survivor = sorted(before)
        before[victim].kill()
        await asyncio.to_thread(before[victim].wait, 60)
        _, replies = await serve(at, exporter.export("a", 3, seed=3))
        after = vllm_processes()
        assert after.keys() == before.keys()
        assert after[survivor] == before[survivor]
        assert after[victim] != before[victim]
        assert [reply.version for reply in replies] == ["a@3", "a@3"]
        assert sorted(await serving(engines)) == [["a@1", "a@3"], ["a@3"]]
        (await roles.engines(at.config, at.model_path)).kill()
