"""Two real engines on the CPU: every one serves what is published, answers its share of a rollout, and is started again
alone where it dies."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from prefect.logging import disable_run_logger

from lora_rl.cluster.actors import ActorGroup, find_actor, standing_names
from lora_rl.cluster.calls import call
from lora_rl.cluster.connect import connect, disconnect
from lora_rl.cluster.hosted import RemoteEngine
from lora_rl.config import RunConfig, StoreConfig, load_config
from lora_rl.data.samples_io import read_samples
from lora_rl.engine import GenerateRequest, PublishOutcome, PublishReply
from lora_rl.errors import EngineDied, EngineError
from lora_rl.models import resolve_model
from lora_rl.rollout.actor import RolloutActor
from lora_rl.store import AdapterRef, open_store
from tasks.hot_load import serve
from tests.peft_adapters import PeftExporter, logp_gap
from tests.processes import ray_head, running, the_children, wait_until
from tests.tolerances import PARITY

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def cluster(cluster_environment: dict[str, str]) -> Iterator[None]:
    """Engines stand from one test to the next."""
    connect(cluster_environment["RAY_ADDRESS"])
    yield
    for name in standing_names("engine"):
        if (handle := find_actor(name)) is not None:
            ray.kill(handle)
    disconnect()


@dataclass(frozen=True)
class At:
    """The part of an iteration that `serve` reads."""

    config: RunConfig
    model_path: Path
    store: StoreConfig


def two_replicas(folder: Path) -> Any:
    config = load_config(ROOT / "examples" / "tiny.yaml", ["engine.replicas=2", f"store.uri=file://{folder}"])
    return At(config, resolve_model(config.model.name), config.store)


async def serving(engines: ActorGroup) -> list[list[str]]:
    return [list(await call(engine.serving, deadline_s=120)) for engine in engines.handles]


def vllm_processes() -> dict[int, psutil.Process]:
    """vLLM's process by that of its actor, of the session's workstation."""
    return {
        actor.pid: the_children(actor.pid, "VLLM::EngineCore", 1)[0]
        for actor in the_children(ray_head(), "ray::EngineHost", 2)
    }


async def served_again(at: Any, adapter: AdapterRef) -> list[PublishReply]:
    """What a run gets, which tries again where an engine did not know yet that vLLM was dead."""
    async with asyncio.timeout(400):
        while True:
            with suppress(EngineDied):
                return (await serve(at, adapter))[1]


async def test_two_replicas_serve_what_is_published_and_a_dead_one_starts_again_alone(tmp_path: Path) -> None:
    at = two_replicas(tmp_path)
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
        await asyncio.to_thread(wait_until, lambda: not running(before[victim].pid), "death of vLLM")
        replies = await served_again(at, exporter.export("a", 3, seed=3))
        after = vllm_processes()
        assert after.keys() == before.keys()
        assert after[survivor] == before[survivor]
        assert after[victim] != before[victim]
        assert {reply.version for reply in replies} == {"a@3"}
        assert sorted(await serving(engines)) == [["a@1", "a@3"], ["a@3"]]


class Watched(RemoteEngine):
    """Notes the ids of the samples that it is asked for."""

    asked: list[str]

    async def generate(self, *, requests: list[GenerateRequest], **arguments: Any) -> Any:
        self.asked = [request.id for request in requests]
        return await super().generate(requests=requests, **arguments)


async def test_each_replica_draws_its_share_under_what_was_published_last(tmp_path: Path) -> None:
    at = two_replicas(tmp_path)
    exporter = PeftExporter(at.model_path, at.store)
    rollouter = RolloutActor(model_path=str(at.model_path))
    for version in (11, 12):
        adapter = exporter.export("b", version, seed=version)
        with disable_run_logger():
            engines, replies = await serve(at, adapter)
        assert [reply.version for reply in replies] == [adapter.label] * 2
        watched = [Watched(handle, 240) for handle in engines.handles]
        reply = await rollouter.rollout(
            engines=watched,
            store=at.store,
            data=at.config.data,
            sampling=at.config.sampling,
            seed=0,
            position=0,
            adapter=adapter,
            reward=at.config.reward,
            dynamic_sampling=None,
            batch_id=adapter.label,
        )
        samples = read_samples(open_store(at.store).get_blob(reply.samples))
        assert len(samples) == 16
        assert watched[0].asked + watched[1].asked == [sample.id for sample in samples]
        assert len(watched[0].asked) == len(watched[1].asked) == 8
        model = exporter.model(seed=version)
        temperature = at.config.sampling.temperature
        gaps = [
            logp_gap(model, each.prompt_tokens, each.response_tokens, each.logp_rollout, temperature=temperature)
            for each in samples
        ]
        assert max(gaps) < 5 * PARITY
