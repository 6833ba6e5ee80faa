"""Which actors a run needs: engines, trainer ranks and the rollout actor, found or started from its config."""

import os
from pathlib import Path

from lora_rl.cluster.actors import ActorGroup, find_or_start, free_rendezvous, started
from lora_rl.cluster.hosted import EngineHost, RolloutHost, TrainerHost
from lora_rl.config import RunConfig

ASYNC_CALLS = 1000
"""Calls an asynchronous actor takes at a time; work is bounded inside."""


async def engines(config: RunConfig, model_path: Path) -> ActorGroup:
    """Engine replicas that serve adapters of this config's base."""
    identity = {
        "model": str(model_path),
        "dtype": config.model.dtype,
        "engine": config.engine.model_dump(mode="json"),
        "max_rank": config.engine_max_rank,
        "slots": config.trainer.slots,
    }
    arguments = {
        "model_path": str(model_path),
        "dtype": config.model.dtype,
        "engine": config.engine,
        "max_rank": config.engine_max_rank,
        "slots": config.trainer.slots,
    }
    group = find_or_start(
        "engine", EngineHost, arguments, count=config.engine.replicas, identity=identity, concurrency=ASYNC_CALLS
    )
    return await started(group, deadline_s=config.deadlines.start_s)


async def trainer(config: RunConfig, model_path: Path) -> ActorGroup:
    """All ranks of the trainer."""
    identity = {
        "model": str(model_path),
        "dtype": config.model.dtype,
        "trainer": config.trainer.model_dump(mode="json"),
    }
    arguments = {"model_path": str(model_path), "dtype": config.model.dtype, "trainer": config.trainer}
    count = config.trainer.world_size
    group = find_or_start("trainer", TrainerHost, arguments, count=count, per_rank=True, identity=identity)
    rendezvous = free_rendezvous() if count > 1 else None
    return await started(group, deadline_s=config.deadlines.start_s, rendezvous=rendezvous)


async def rollouter(config: RunConfig, model_path: Path) -> ActorGroup:
    """The actor that draws prompts, collects answers and runs the graders: those that this process can import."""
    arguments = {"model_path": str(model_path), "python_path": os.environ.get("PYTHONPATH", "")}
    group = find_or_start("rollout", RolloutHost, arguments, identity=arguments, concurrency=ASYNC_CALLS)
    return await started(group, deadline_s=config.deadlines.start_s)
