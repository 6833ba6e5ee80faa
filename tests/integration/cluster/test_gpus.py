"""Placement on a real Ray cluster that claims to have four GPUs; the actors say what they see of them."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import ray
import ray.cloudpickle
from ray.actor import ActorHandle
from ray.util.placement_group import placement_group_table

from lora_rl.cluster import gpus
from lora_rl.cluster.actors import ActorGroup, Cast, ended, find_or_start, started
from lora_rl.cluster.calls import call
from lora_rl.cluster.connect import NAMESPACE, disconnect
from lora_rl.cluster.hosted import see_only
from lora_rl.cluster.layout import Demand, Layout, Mode
from lora_rl.errors import ActorLost, ConfigError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def cluster() -> AsyncIterator[None]:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init(
            address="local",
            namespace=NAMESPACE,
            num_cpus=2,
            num_gpus=4,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            _node_ip_address="127.0.0.1",
            log_to_driver=False,
        )
        signal.signal(signal.SIGTERM, handler)
        yield
        disconnect()


class Host:
    """Stands in for an engine or a trainer rank."""

    def __init__(self, gpus: str | None = None, rank: int = 0, world_size: int = 1) -> None:
        see_only(gpus)

    def start(self) -> None:
        pass

    def seen(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")


def demand(mode: Mode, ranks: int, replicas: int, tensor_parallel: int = 1) -> Demand:
    return Demand(mode=mode, trainer_ranks=ranks, replicas=replicas, tensor_parallel=tensor_parallel)


async def actors(asked: Demand, role: str) -> ActorGroup:
    layout = gpus.checked_layout(asked)
    assert isinstance(layout, Layout)
    places = layout.trainer if role == "trainer" else layout.engines
    cast = Cast(
        role=role,
        host=Host,
        arguments={},
        identity={"layout": layout.digest},
        count=len(places),
        ranked=role == "trainer",
    )
    return await started(await find_or_start(cast, lambda: gpus.seats(layout, places)), deadline_s=120)


async def until_gone(handle: ActorHandle) -> None:
    """Returns once calls of the actor fail: Ray may hear of its end after its GPUs are another's."""
    async with asyncio.timeout(120):
        while True:
            try:
                await call(handle.seen, deadline_s=120)
            except ActorLost:
                return


async def seen(group: ActorGroup) -> list[str]:
    return [await call(handle.seen, deadline_s=120) for handle in group.handles]


def reserved() -> list[int]:
    """GPUs of each of our living placement groups."""
    groups = [entry for entry in placement_group_table().values() if entry["name"].startswith(gpus.PREFIX)]
    return [
        int(sum(bundle["GPU"] for bundle in entry["bundles"].values()))
        for entry in groups
        if entry["state"] == "CREATED"
    ]


async def test_disaggregated_actors_see_gpus_of_their_own() -> None:
    asked = demand("disaggregated", ranks=2, replicas=1, tensor_parallel=2)
    ranks, engines = await seen(await actors(asked, "trainer")), await seen(await actors(asked, "engine"))
    assert sorted(",".join(ranks + engines).split(",")) == ["0", "1", "2", "3"]
    assert [len(gpu.split(",")) for gpu in ranks] == [1, 1]
    assert len(engines[0].split(",")) == 2
    assert reserved() == [4]


async def test_colocated_ranks_see_one_gpu_each_of_those_that_their_engine_sees() -> None:
    asked = demand("colocated", ranks=4, replicas=2, tensor_parallel=2)
    engines, ranks = await seen(await actors(asked, "engine")), await seen(await actors(asked, "trainer"))
    assert ",".join(ranks) == ",".join(engines)
    assert sorted(ranks) == ["0", "1", "2", "3"]
    assert reserved() == [4]


async def test_actors_and_gpus_are_found_again() -> None:
    asked = demand("colocated", ranks=1, replicas=1)
    first = await actors(asked, "engine")
    assert await seen(await actors(asked, "engine")) == await seen(first)
    assert reserved() == [1]
    await ended(first.handles[0])
    assert await seen(await actors(asked, "engine")) == await seen(await actors(asked, "trainer"))
    assert reserved() == [1]


async def test_another_layout_takes_the_gpus_and_ends_the_actors_of_the_one_before() -> None:
    before = await actors(demand("colocated", ranks=3, replicas=3), "engine")
    await actors(demand("colocated", ranks=4, replicas=4), "trainer")
    for handle in before.handles:
        await until_gone(handle)
    assert reserved() == [4]


async def test_too_few_gpus_are_refused_before_anything_is_reserved() -> None:
    before = reserved()
    with pytest.raises(ConfigError, match=r"disaggregated needs 5 GPUs .* the cluster has 4 .* colocated, which fits"):
        await actors(demand("disaggregated", ranks=4, replicas=1), "trainer")
    assert reserved() == before
