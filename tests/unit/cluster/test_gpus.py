"""What becomes of a placement group whose GPUs do not become free, with plain objects in the place of Ray's."""

import asyncio
from typing import Any

import pytest

from lora_rl.cluster import gpus
from lora_rl.cluster.layout import Demand, Layout
from lora_rl.errors import ClusterError


class Group:
    """Never gets its GPUs."""

    async def ready(self) -> None:
        await asyncio.Event().wait()


class Groups:
    """The cluster's placement groups, by name."""

    def __init__(self, **found: Group) -> None:
        self.found = found
        self.made: list[Group] = []
        self.removed: list[Any] = []

    def get(self, name: str) -> Group:
        if name not in self.found:
            raise ValueError(name)
        return self.found[name]

    def make(self, *_: Any, **__: Any) -> Group:
        self.made.append(Group())
        return self.made[-1]


@pytest.fixture
def layout() -> Layout:
    return Demand(mode="colocated", trainer_ranks=1, replicas=1, tensor_parallel=1).layout()


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    cluster = Groups()
    monkeypatch.setattr(gpus, "placement_group_table", dict)
    monkeypatch.setattr(gpus, "get_placement_group", cluster.get)
    monkeypatch.setattr(gpus, "placement_group", cluster.make)
    monkeypatch.setattr(gpus, "remove_placement_group", cluster.removed.append)
    return cluster


async def test_a_group_made_in_vain_is_given_up(
    layout: Layout, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "RESERVE_S", 0.01)
    with pytest.raises(ClusterError, match="1 GPUs did not become free"):
        await gpus._reserved(layout)
    assert groups.removed == groups.made != []


async def test_a_group_that_nobody_waits_for_any_more_is_given_up(layout: Layout, groups: Groups) -> None:
    waiting = asyncio.create_task(gpus._reserved(layout))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert groups.removed == groups.made != []


async def test_a_group_that_another_made_is_left_to_it(
    layout: Layout, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "RESERVE_S", 0.01)
    groups.found[gpus.PREFIX + layout.digest] = Group()
    with pytest.raises(ClusterError):
        await gpus._reserved(layout)
    assert groups.removed == []
