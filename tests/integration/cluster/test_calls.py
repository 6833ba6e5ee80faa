"""Calls to real actors: deadlines, cancellation, death, and errors as they were raised."""

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Iterator

import pytest
import ray
import ray.cloudpickle
from ray.actor import ActorHandle

from lora_rl.cluster.actors import ActorGroup, Cast, ended, find_or_start, started
from lora_rl.cluster.calls import call
from lora_rl.cluster.connect import connect, disconnect
from lora_rl.errors import ActorLost, DeadlineExceeded, EngineError, PeerFailed

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

PATIENCE_S = 120.0
"""For what takes a second or two where nothing else runs."""


@pytest.fixture(scope="module", autouse=True)
def cluster(cluster_environment: dict[str, str]) -> Iterator[None]:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    handler = signal.getsignal(signal.SIGTERM)
    connect(cluster_environment["RAY_ADDRESS"])
    assert signal.getsignal(signal.SIGTERM) is handler
    yield
    disconnect()


class Host:
    """An asynchronous actor."""

    def __init__(self, word: str = "hello") -> None:
        self.word = word
        self.begun = self.cancelled = 0

    async def start(self, **arguments: str) -> str:
        return self.word

    async def pid(self) -> int:
        return os.getpid()

    async def wait(self) -> None:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def waits(self) -> tuple[int, int]:
        """How many calls of `wait` began, and how many of them were cancelled."""
        return self.begun, self.cancelled

    async def fail(self, kind: type[Exception]) -> None:
        raise kind("replica: 3 is broken; restart it")

    async def die(self) -> None:
        os._exit(1)

    async def drain_logs(self, after: int) -> list[tuple[int, int, str]]:
        lines = [(1, 20, "one"), (2, 30, "two")]
        return [line for line in lines if line[0] > after]


class Rank:
    """A synchronous actor, one of several that would wait for each other."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size

    def start(self) -> int:
        return self.rank

    def lose(self, failing: int, by: str) -> None:
        if failing != self.rank:
            raise PeerFailed("a collective broke off")  # before the one that failed is heard of
        time.sleep(1)
        if by == "death":
            os._exit(1)
        raise EngineError("gradient: nan")

    def meet(self, failing: int | None = None) -> tuple[int, int]:
        if failing == self.rank:
            raise EngineError("gradient: nan")
        if failing is not None:
            time.sleep(600)  # as a rank that waits in a collective for the one that failed
        return self.rank, self.world_size


async def group(role: str, *, count: int = 1, **identity: str) -> ActorGroup:
    return await find_or_start(
        Cast(role=role, host=Host, arguments={"word": role}, identity=identity, count=count, concurrency=10)
    )


async def ranks(role: str, count: int = 2) -> ActorGroup:
    return await find_or_start(Cast(role=role, host=Rank, arguments={}, identity={}, count=count, ranked=True))


async def all_cancelled(host: ActorHandle) -> None:
    """Returns once no `wait` of the actor is under way any more."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            begun, cancelled = await call(host.waits, deadline_s=PATIENCE_S)
            if begun == cancelled > 0:
                return


async def gone(handle: ActorHandle, method: str) -> bool:
    try:
        await call(getattr(handle, method), deadline_s=PATIENCE_S)
    except ActorLost:
        return True
    return False


async def test_deadline_ends_the_call_and_cancels_it_in_the_actor() -> None:
    host = (await group("deadline")).handles[0]
    await call(host.start, deadline_s=PATIENCE_S)
    deadline_s, begun = 0.5, 0
    while not begun:  # a call that is cut off on its way to the actor shows nothing
        text = f"wait: no answer within {deadline_s:g} s, cancelled; raise its deadline"
        with pytest.raises(DeadlineExceeded, match=re.escape(text)):
            await call(host.wait, deadline_s=deadline_s)
        begun, _ = await call(host.waits, deadline_s=PATIENCE_S)
        deadline_s *= 2
    await all_cancelled(host)


async def test_cancelling_the_caller_cancels_the_call_in_the_actor() -> None:
    host = (await group("cancel")).handles[0]
    await call(host.start, deadline_s=PATIENCE_S)
    task = asyncio.create_task(call(host.wait, deadline_s=600))
    async with asyncio.timeout(PATIENCE_S):
        while await call(host.waits, deadline_s=PATIENCE_S) != (1, 0):
            pass
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await all_cancelled(host)


@pytest.mark.parametrize("kind", [EngineError, ValueError, TimeoutError, DeadlineExceeded, ActorLost])
async def test_error_arrives_as_the_actor_raised_it(kind: type[Exception]) -> None:
    host = (await group("fail")).handles[0]
    with pytest.raises(kind) as caught:
        await call(host.fail, deadline_s=PATIENCE_S, kind=kind)
    assert type(caught.value) is kind
    assert str(caught.value) == "replica: 3 is broken; restart it"


async def test_error_carries_the_traceback_of_the_actor() -> None:
    with pytest.raises(EngineError) as caught:
        await (await group("fail")).call_first("fail", deadline_s=PATIENCE_S, kind=EngineError)
    assert any("in fail" in note for note in caught.value.__notes__)


async def test_death_of_the_actor_is_a_lost_actor_and_the_next_is_started_anew() -> None:
    lost = await group("death")
    await started(lost, deadline_s=PATIENCE_S)
    with pytest.raises(ActorLost, match="die: the actor died or became unreachable"):
        await lost.call_first("die", deadline_s=PATIENCE_S)
    for _ in range(3):
        try:
            await started(await group("death"), deadline_s=PATIENCE_S)
            break
        except ActorLost:
            continue
    else:
        pytest.fail("the dead actor is still found by its name")


async def test_actor_is_found_by_what_it_was_made_from_and_replaced_otherwise() -> None:
    first = await group("role", model="a")
    pid = await first.call_first("pid", deadline_s=PATIENCE_S)
    assert await (await group("role", model="a")).call_first("pid", deadline_s=PATIENCE_S) == pid
    other = await (await group("role", model="b")).call_first("pid", deadline_s=PATIENCE_S)
    assert other != pid
    assert await gone(first.handles[0], "pid")


async def test_a_replica_that_died_is_started_again_alone() -> None:
    replicas = await started(await group("replica", count=2), deadline_s=PATIENCE_S)
    pids = [await call(handle.pid, deadline_s=PATIENCE_S) for handle in replicas.handles]
    with pytest.raises(ActorLost):
        await call(replicas.handles[1].die, deadline_s=PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                again = await started(await group("replica", count=2), deadline_s=PATIENCE_S)
                break
            except ActorLost:
                continue
    assert await call(again.handles[0].pid, deadline_s=PATIENCE_S) == pids[0]
    assert await call(again.handles[1].pid, deadline_s=PATIENCE_S) != pids[1]


async def test_a_rank_that_died_takes_the_others_with_it() -> None:
    trainer = await started(await ranks("mates"), deadline_s=PATIENCE_S)
    await ended(trainer.handles[1])
    assert await gone(trainer.handles[1], "start")
    again = await started(await ranks("mates"), deadline_s=PATIENCE_S)
    assert await gone(trainer.handles[0], "start")
    assert await again.call_all("meet", deadline_s=PATIENCE_S) == (0, 2)


async def test_ranks_know_their_place_and_answer_together() -> None:
    trainer = await started(await ranks("ranks"), deadline_s=PATIENCE_S)
    assert await trainer.call_all("meet", deadline_s=PATIENCE_S) == (0, 2)


async def test_failure_of_one_rank_ends_all_long_before_their_deadline() -> None:
    trainer = await started(await ranks("collective"), deadline_s=PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(EngineError, match="gradient: nan"):
            await trainer.call_all("meet", deadline_s=600, failing=1)
    assert await gone(trainer.handles[0], "start")


async def test_the_error_of_the_rank_that_failed_is_raised_not_that_of_its_peers() -> None:
    trainer = await started(await ranks("cause", count=3), deadline_s=PATIENCE_S)
    with pytest.raises(EngineError, match="gradient: nan") as caught:
        await trainer.call_all("lose", deadline_s=600, failing=2, by="error")
    assert "cause rank 2 of 3 failed" in caught.value.__notes__
    assert any("in lose" in note for note in caught.value.__notes__)


async def test_a_rank_that_died_is_named_before_the_peers_that_lost_it() -> None:
    trainer = await started(await ranks("dead", count=3), deadline_s=PATIENCE_S)
    with pytest.raises(ActorLost, match="dead rank 2: lose: the actor died"):
        await trainer.call_all("lose", deadline_s=600, failing=2, by="death")


async def test_deadline_of_a_synchronous_actor_ends_it() -> None:
    trainer = await started(await ranks("slow", count=1), deadline_s=PATIENCE_S)
    with pytest.raises(DeadlineExceeded):
        await trainer.call_all("meet", deadline_s=0.5, failing=1)
    assert await gone(trainer.handles[0], "start")


async def test_logs_come_once_also_to_a_group_found_anew() -> None:
    await started(await group("logs"), deadline_s=PATIENCE_S)
    assert await (await group("logs")).drain_logs() == [(20, "[logs-0] one"), (30, "[logs-0] two")]
    assert await (await group("logs")).drain_logs() == []
