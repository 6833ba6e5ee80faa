"""Which GPUs each actor gets, as bundles that Ray reserves. Free of Ray; gpus.py reserves them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from lora_rl.config import RunConfig

Mode = Literal["disaggregated", "colocated"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """GPUs of one actor: some of those of a bundle."""

    bundle: int
    gpus: tuple[int, ...]
    """Positions among the bundle's GPUs."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Bundles, each on one node, and every actor's place in them."""

    bundles: tuple[int, ...]
    """Number of GPUs of each."""
    trainer: tuple[Place, ...]
    """By rank."""
    engines: tuple[Place, ...]
    """By replica."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Demand:
    """What a config asks for."""

    mode: Mode
    trainer_ranks: int
    replicas: int
    tensor_parallel: int
    """GPUs of one engine, which lie on one node."""

    def layout(self) -> Layout:
        """`disaggregated`: a bundle for each rank and each engine. `colocated`: one for each engine, whose GPUs the
        ranks share in order; ranks beyond the engines' GPUs have a bundle each."""
        ranks, replicas, size = self.trainer_ranks, self.replicas, self.tensor_parallel
        shared = min(ranks, replicas * size) if self.mode == "colocated" else 0
        alone = ranks - shared
        trainer = [Place(bundle=rank // size, gpus=(rank % size,)) for rank in range(shared)]
        return Layout(
            bundles=(size,) * replicas + (1,) * alone,
            trainer=(*trainer, *(Place(bundle=replicas + number, gpus=(0,)) for number in range(alone))),
            engines=tuple(Place(bundle=replica, gpus=tuple(range(size))) for replica in range(replicas)),
        )


def demand_of(config: RunConfig) -> Demand:
    """What a run asks for."""
    return Demand(
        mode=config.placement.mode,
        trainer_ranks=config.trainer.world_size,
        replicas=config.engine.replicas,
        tensor_parallel=config.engine.tensor_parallel,
    )


def fits(layout: Layout, gpus_of_nodes: Sequence[int]) -> bool:
    """Whether the nodes can hold all bundles, each on one node."""
    free = list(gpus_of_nodes)
    for size in sorted(layout.bundles, reverse=True):
        node = next((node for node, left in enumerate(free) if left >= size), None)
        if node is None:
            return False
        free[node] -= size
    return True


def room_fault(demand: Demand, gpus_of_nodes: Sequence[int]) -> str | None:
    """`field: value, rule; mend` where the nodes' GPUs cannot hold what is asked for; None where they can."""
    layout = demand.layout()
    if fits(layout, gpus_of_nodes):
        return None
    found = f"{sum(gpus_of_nodes)} ({' + '.join(map(str, gpus_of_nodes))} by node)"
    if demand.tensor_parallel > max(gpus_of_nodes):
        return (
            f"engine.tensor_parallel: {demand.tensor_parallel} GPUs of one node for each engine, but the cluster has "
            f"{found}; lower it"
        )
    return (
        f"placement.mode: {demand.mode} needs {sum(layout.bundles)} GPUs for {demand.trainer_ranks} trainer rank(s) "
        f"and {demand.replicas} engine(s) of {demand.tensor_parallel}, but the cluster has {found}; "
        f"{_mend(demand, gpus_of_nodes)}"
    )


def _mend(demand: Demand, gpus_of_nodes: Sequence[int]) -> str:
    if fits(replace(demand, mode="colocated").layout(), gpus_of_nodes):
        return "set it to colocated, which fits"
    for mode in (demand.mode, "colocated"):
        for replicas in range(demand.replicas - 1, 0, -1):
            if fits(replace(demand, mode=mode, replicas=replicas).layout(), gpus_of_nodes):
                return f"with {mode} and engine.replicas {replicas} it fits"
    return "lower the trainer's parallel sizes, or join a larger cluster"
