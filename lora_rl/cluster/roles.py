"""Which actors a run needs: engines, trainer ranks and the rollout actor, found or started from its config."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

from lora_rl.cluster import gpus
from lora_rl.cluster.actors import ActorGroup, Cast, find_or_start, started
from lora_rl.cluster.calls import call
from lora_rl.cluster.hosted import EngineHost, RolloutHost, TrainerHost
from lora_rl.cluster.layout import Layout, Place, demand_of
from lora_rl.cluster.turns import come_back, step_aside
from lora_rl.config import RunConfig

ASYNC_CALLS = 1000
"""Calls an asynchronous actor takes at a time; work is bounded inside."""


async def engines(config: RunConfig, model_path: Path) -> ActorGroup:
    """Engine replicas that serve adapters of this config's base, awake. One that died is started again alone."""
    layout, deadline_s = _layout(config), config.deadlines.start_s
    seconds: dict[str, float] = {}
    if _takes_turns(config):
        seconds |= await step_aside(_trainer_cast(config, model_path, layout), "offload", deadline_s=deadline_s)
    group = await find_or_start(_engine_cast(config, model_path, layout), _seats(layout, "engines"))
    await started(group, deadline_s=deadline_s)
    if _takes_turns(config):
        seconds |= await come_back(group, "wake", deadline_s=deadline_s)
    return replace(group, seconds=seconds)


async def trainer(config: RunConfig, model_path: Path) -> ActorGroup:
    """All ranks of the trainer, on their devices."""
    layout, deadline_s = _layout(config), config.deadlines.start_s
    seconds: dict[str, float] = {}
    if _takes_turns(config):
        seconds |= await step_aside(_engine_cast(config, model_path, layout), "sleep", deadline_s=deadline_s)
    group = await find_or_start(_trainer_cast(config, model_path, layout), _seats(layout, "trainer"))
    await started(group, deadline_s=deadline_s, rendezvous=await rendezvous(group, deadline_s=deadline_s))
    if _takes_turns(config):
        seconds |= await come_back(group, "onload", deadline_s=deadline_s)
    return replace(group, seconds=seconds)


async def rendezvous(ranks: ActorGroup, *, deadline_s: float) -> str | None:
    """Where the ranks of a trainer meet; None for one alone."""
    if len(ranks.handles) == 1:
        return None
    nodes = await asyncio.gather(*(call(handle.node, deadline_s=deadline_s) for handle in ranks.handles))
    return await ranks.call_first("rendezvous", deadline_s=deadline_s, one_node=len(set(nodes)) == 1)


async def rollouter(config: RunConfig, model_path: Path) -> ActorGroup:
    """The actor that draws prompts, collects answers and runs the graders: those that this process can import."""
    arguments = {"model_path": str(model_path), "python_path": os.environ.get("PYTHONPATH", "")}
    cast = Cast(role="rollout", host=RolloutHost, arguments=arguments, identity=arguments, concurrency=ASYNC_CALLS)
    return await started(await find_or_start(cast), deadline_s=config.deadlines.start_s)


async def start_all(config: RunConfig, model_path: Path) -> None:
    """Starts all actors of a run before it begins. Colocated ones in the order of a run: two cannot start at once."""
    if _takes_turns(config):
        await trainer(config, model_path)
        await engines(config, model_path)
        await rollouter(config, model_path)
    else:
        await asyncio.gather(*(role(config, model_path) for role in (engines, trainer, rollouter)))


def _engine_cast(config: RunConfig, model_path: Path, layout: Layout | None) -> Cast:
    arguments = {
        "model_path": str(model_path),
        "dtype": config.model.dtype,
        "engine": config.engine,
        "max_rank": config.engine_max_rank,
        "slots": config.trainer.slots,
        "sleeps": _takes_turns(config),
    }
    return Cast(
        role="engine",
        host=EngineHost,
        arguments=arguments,
        # without GPUs one more replica, or one less, is no reason to replace the others; with GPUs it is another layout
        identity=arguments
        | {"engine": config.engine.model_dump(mode="json", exclude={"replicas"})}
        | _placement(config, layout),
        count=config.engine.replicas,
        concurrency=ASYNC_CALLS,
    )


def _trainer_cast(config: RunConfig, model_path: Path, layout: Layout | None) -> Cast:
    arguments = {"model_path": str(model_path), "dtype": config.model.dtype, "trainer": config.trainer}
    return Cast(
        role="trainer",
        host=TrainerHost,
        arguments=arguments,
        identity=arguments | {"trainer": config.trainer.model_dump(mode="json")} | _placement(config, layout),
        count=config.trainer.world_size,
        ranked=True,
    )


def _takes_turns(config: RunConfig) -> bool:
    return config.placement.mode == "colocated"


def _layout(config: RunConfig) -> Layout | None:
    return gpus.checked_layout(demand_of(config))


def _placement(config: RunConfig, layout: Layout | None) -> dict[str, str | None]:
    """The part of an actor's identity that says where it sits."""
    return {"mode": config.placement.mode, "layout": layout.digest if layout else None}


def _seats(layout: Layout | None, role: str) -> Callable[[], Awaitable[Sequence[gpus.Seat]]] | None:
    if layout is None:
        return None
    places: Sequence[Place] = layout.trainer if role == "trainer" else layout.engines
    return lambda: gpus.seats(layout, places)
