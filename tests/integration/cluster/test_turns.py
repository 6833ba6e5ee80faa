"""Turns of real actors that stand in for trainer and engine."""

import sys
from collections.abc import Iterator

import pytest
import ray
import ray.cloudpickle
from ray.actor import ActorHandle

from lora_rl.cluster.actors import ActorGroup, Cast, find_or_start, started
from lora_rl.cluster.calls import call
from lora_rl.cluster.connect import connect, disconnect
from lora_rl.cluster.turns import come_back, step_aside
from lora_rl.errors import ActorLost, EngineDied

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]


@pytest.fixture(scope="module", autouse=True)
def cluster(cluster_environment: dict[str, str]) -> Iterator[None]:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    connect(cluster_environment["RAY_ADDRESS"])
    yield
    disconnect()


class Host:
    """Has memory to move; raises in the method of its name that `failing` says, where it is that rank."""

    def __init__(self, failing: tuple[str, type[Exception], int] | None = None, rank: int = 0, world_size: int = 1):
        self.failing = failing if failing and failing[2] == rank else None
        self.away = False

    def start(self) -> None:
        pass

    def offload(self) -> str:
        return self._move("offload", away=True)

    def onload(self) -> str:
        return self._move("onload", away=False)

    def _move(self, method: str, *, away: bool) -> str:
        if self.failing and self.failing[0] == method:
            raise self.failing[1](f"{method}: no room")
        moved, self.away = self.away != away, away
        return f"{method}ed" if moved else "nothing"


def cast(role: str, *, failing: tuple[str, type[Exception], int] | None = None, count: int = 1, ranked: bool = False):
    arguments = {"failing": failing}
    identity = {"failing": str(failing)}
    return Cast(role=role, host=Host, arguments=arguments, identity=identity, count=count, ranked=ranked)


async def standing(of: Cast) -> ActorGroup:
    return await started(await find_or_start(of), deadline_s=120)


async def gone(handle: ActorHandle) -> bool:
    try:
        await call(handle.start, deadline_s=120)
    except ActorLost:
        return True
    return False


async def test_seconds_are_told_only_where_memory_moved() -> None:
    of = cast("moves")
    assert await step_aside(of, "offload", deadline_s=120) == {}
    group = await standing(of)
    assert list(await step_aside(of, "offload", deadline_s=120)) == ["time/offload_s"]
    assert await step_aside(of, "offload", deadline_s=120) == {}
    assert list(await come_back(group, "onload", deadline_s=120)) == ["time/onload_s"]
    assert await come_back(group, "onload", deadline_s=120) == {}


async def test_actors_made_from_anything_else_leave_the_gpus() -> None:
    others = await standing(cast("others"))
    await step_aside(cast("others", failing=("never", ValueError, 0)), "offload", deadline_s=120)
    assert await gone(others.handles[0])


@pytest.mark.parametrize("ranked", [False, True])
async def test_an_actor_that_cannot_step_aside_is_ended_and_of_ranks_all_are(ranked: bool) -> None:
    of = cast(f"stuck{ranked}", failing=("offload", MemoryError, 0), count=2 if ranked else 1, ranked=ranked)
    group = await standing(of)
    await step_aside(of, "offload", deadline_s=120)
    assert [await gone(handle) for handle in group.handles] == [True] * of.count


async def test_a_failed_return_is_a_lost_actor_and_the_next_is_started_anew() -> None:
    of = cast("lost", failing=("onload", MemoryError, 1), count=2, ranked=True)
    group = await standing(of)
    await step_aside(of, "offload", deadline_s=120)
    with pytest.raises(ActorLost, match="lost-1: could not onload: onload: no room"):
        await come_back(group, "onload", deadline_s=120)
    assert [await gone(handle) for handle in group.handles] == [True, True]


async def test_an_engine_that_ended_vllm_itself_stays_to_start_it_again() -> None:
    of = cast("engine-like", failing=("onload", EngineDied, 0))
    group = await standing(of)
    await step_aside(of, "offload", deadline_s=120)
    with pytest.raises(ActorLost, match="engine-like-0: could not onload"):
        await come_back(group, "onload", deadline_s=120)
    assert not await gone(group.handles[0])
