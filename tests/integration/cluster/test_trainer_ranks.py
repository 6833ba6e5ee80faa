"""Real ranks of a trainer on Ray: a failure in the middle of a step ends all of them, and names the one."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import ray.cloudpickle

from lora_rl.cluster.actors import ActorGroup, Cast, find_or_start, started
from lora_rl.cluster.connect import connect, disconnect
from lora_rl.cluster.hosted import TrainerHost
from lora_rl.cluster.roles import rendezvous
from lora_rl.config import AdapterConfig, AlgorithmConfig, SamplingConfig, StoreConfig, TrainerConfig
from lora_rl.data.samples_io import write_samples
from lora_rl.errors import ActorLost
from lora_rl.models.tiny import make_tiny_qwen3
from lora_rl.store import open_store
from tests.builders import make_training_samples

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

DEADLINE_S = 240.0
"""Of each call: one that is answered by it and not by an actor's failure is another error."""


@pytest.fixture(scope="module", autouse=True)
def cluster(cluster_environment: dict[str, str]) -> Iterator[None]:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    connect(cluster_environment["RAY_ADDRESS"])
    yield
    disconnect()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_qwen3(tmp_path_factory.mktemp("model") / "qwen3")


async def two_ranks(model: Path, **layout: int) -> ActorGroup:
    """A trainer of two processes."""
    config = TrainerConfig(**layout)
    cast = Cast(
        role="trainer",
        host=TrainerHost,
        arguments={"model_path": str(model), "dtype": "float32", "trainer": config},
        identity=config.model_dump(mode="json"),
        count=2,
        ranked=True,
    )
    group = await find_or_start(cast)
    return await started(group, deadline_s=DEADLINE_S, rendezvous=await rendezvous(group, deadline_s=DEADLINE_S))


async def train(group: ActorGroup, folder: Path) -> Any:
    """One step from a fresh state."""
    store, adapter = StoreConfig(uri=str(folder)), AdapterConfig(rank=4)
    start = await group.call_all("new_state", deadline_s=DEADLINE_S, store=store, adapter=adapter, seed=0)
    return await group.call_all(
        "train_step",
        deadline_s=DEADLINE_S,
        store=store,
        adapter=adapter,
        start=start,
        samples=open_store(store).put_blob("samples", write_samples(make_training_samples())),
        algorithm=AlgorithmConfig(max_mismatch=None),
        sampling=SamplingConfig(),
        seed=0,
    )


async def break_in_step(group: ActorGroup, rank: int, *, by: str) -> None:
    """Let a rank fail between its backward passes and the sum over ranks."""

    def plant(host: Any) -> None:
        def take_gradients(slots: Any) -> None:
            if by == "death":
                os.kill(os.getpid(), signal.SIGKILL)
            raise FloatingPointError("poisoned")

        host._trainer._bank.take_gradients = take_gradients

    await group.handles[rank].__ray_call__.remote(plant)


def open_addresses(_: Any) -> list[str]:
    """Addresses but for loopback that this process listens on."""
    connections = psutil.Process().net_connections("tcp")
    listening = [connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN]
    return [address for address in listening if address != "127.0.0.1"]


@pytest.mark.parametrize("layout", [{"data_parallel": 2}, {"pipeline_parallel": 2}], ids=["dp2", "pp2"])
async def test_ranks_on_ray_train_and_a_death_in_a_step_names_the_rank(model, layout, tmp_path) -> None:
    group = await two_ranks(model, **layout)
    assert (await train(group, tmp_path / "store")).stepped
    for handle in group.handles:  # the one is Ray's, which asks for the token
        assert await handle.__ray_call__.remote(open_addresses) == ["::"]
    await break_in_step(group, 1, by="death")
    with pytest.raises(ActorLost, match="trainer rank 1: train_step: the actor died"):
        await train(group, tmp_path / "store")


async def test_an_error_in_a_step_of_one_rank_is_the_one_that_is_raised(model, tmp_path) -> None:
    group = await two_ranks(model, data_parallel=2, max_skipped_steps=7)
    await break_in_step(group, 1, by="error")
    with pytest.raises(FloatingPointError, match="poisoned") as caught:
        await train(group, tmp_path / "store")
    assert "trainer rank 1 of 2 failed" in caught.value.__notes__
    assert any("in take_gradients" in note for note in caught.value.__notes__)
