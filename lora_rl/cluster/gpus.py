"""GPUs of a Ray cluster: reserved as one placement group, and given to actors one by one.

Actors ask Ray for no GPU: an engine of several GPUs and the ranks that share them cannot be told in Ray's fractions.
The group holds the GPUs, a short task in each bundle says which they are, and each actor is told which it may see.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lora_rl.cluster.connect import connect
from lora_rl.cluster.layout import Demand, Layout, Place, room_fault
from lora_rl.errors import ClusterError, ConfigError

PREFIX = "lora-rl-gpus-"
RESERVE_S = 60.0
"""Time for other programs on the cluster to give their GPUs back."""

logger = logging.getLogger("lora_rl.cluster")


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where an actor starts, and the value of its CUDA_VISIBLE_DEVICES."""

    strategy: PlacementGroupSchedulingStrategy
    gpus: str


def checked_layout(demand: Demand) -> Layout | None:
    """The layout of `demand` on this cluster; None where it has no GPUs. Raises ConfigError for too few."""
    connect()
    nodes = [int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]]
    gpus_of_nodes = [gpus for gpus in nodes if gpus]
    if not gpus_of_nodes:
        return None
    fault = room_fault(demand, gpus_of_nodes)
    if fault:
        raise ConfigError(fault)
    return demand.layout()


async def seats(layout: Layout, places: Sequence[Place]) -> list[Seat]:
    """A seat for each of the layout's `places`. Raises ClusterError where the GPUs do not become free."""
    group = await _reserved(layout)
    strategies = [PlacementGroupSchedulingStrategy(group, index) for index in range(len(layout.bundles))]
    wanted = sorted({place.bundle for place in places})
    found = await asyncio.gather(*(_gpu_ids(strategies[index], layout.bundles[index]) for index in wanted))
    ids = dict(zip(wanted, found, strict=True))
    return [
        Seat(strategy=strategies[place.bundle], gpus=",".join(ids[place.bundle][gpu] for gpu in place.gpus))
        for place in places
    ]


async def _reserved(layout: Layout) -> PlacementGroup:
    """The layout's placement group, found or made. One of another layout goes first, and its actors with it.

    One made here that is not had in the end is given up: it would take the GPUs from others once they are free.
    """
    name = PREFIX + layout.digest
    for entry in placement_group_table().values():
        if entry["name"].startswith(PREFIX) and entry["name"] != name and entry["state"] != "REMOVED":
            logger.info("giving up %s: another layout is wanted", entry["name"])
            remove_placement_group(get_placement_group(entry["name"]))
    try:
        group = get_placement_group(name)
    except ValueError:
        bundles = [{"GPU": float(size)} for size in layout.bundles]
        group = placement_group(bundles, strategy="PACK", name=name, lifetime="detached")
        try:
            await _until_reserved(group, layout)
        except BaseException:
            remove_placement_group(group)
            raise
    else:
        await _until_reserved(group, layout)
    return group


async def _until_reserved(group: PlacementGroup, layout: Layout) -> None:
    try:
        await asyncio.wait_for(_awaited(group.ready()), RESERVE_S)
    except TimeoutError as error:
        raise ClusterError(
            f"placement: {sum(layout.bundles)} GPUs did not become free within {RESERVE_S:g} s; end what uses them, "
            "or lower engine.replicas"
        ) from error


async def _gpu_ids(strategy: PlacementGroupSchedulingStrategy, size: int) -> list[str]:
    """Numbers of a bundle's GPUs, in their order on its node."""
    probe: Any = ray.remote(_visible_gpus)
    ids = await _awaited(probe.options(num_cpus=0, num_gpus=size, scheduling_strategy=strategy).remote())
    return sorted(ids, key=lambda id: (len(id), id))


def _visible_gpus() -> list[str]:
    return [str(id) for id in ray.get_runtime_context().get_accelerator_ids()["GPU"]]


async def _awaited(reference: Any) -> Any:
    return await reference
