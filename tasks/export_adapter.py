"""The adapter as others can load it."""

import asyncio
import time
from typing import Any

from prefect.client.schemas.objects import State

from lora_rl.cluster import roles
from lora_rl.store import AdapterRef, BlobRef, StepRecord
from tasks.context import Start
from tasks.hot_load import stage
from tasks.step import StepResult, logs_of, run_step, step


@step("export_adapter")
async def export_adapter(at: Start, trained: StepRecord) -> State | StepRecord:
    """The trained state as a PEFT directory, with the trainer's probe that the engine checks itself against.

    Engines on the trainer's host load it from memory while the store is written; it serves once `hot_load` says so.
    """
    config = at.config
    state = trained.output("state")
    version = at.n + 1

    async def body() -> StepResult:
        trainer = await roles.trainer(config, at.model_path)
        call: dict[str, Any] = {
            "deadline_s": config.deadlines.publish_s,
            "store": at.store,
            "adapter": config.adapter,
            "state": state,
            "version": version,
            "base_model_name": config.model.name,
        }
        async with logs_of(trainer):
            clock = time.monotonic()
            handed_over = await trainer.call_all("hand_over", **call)
            seconds = time.monotonic() - clock
            staging = asyncio.create_task(stage(at, f"{config.adapter.name}@{version}", handed_over))
            try:
                reply = await trainer.call_all("export_adapter", handed_over=handed_over, **call)
                await staging
            finally:
                staging.cancel()
                await asyncio.wait([staging])
        adapter = reply.adapter
        return StepResult(
            outputs={"weights": adapter.weights, "config": adapter.config, "probe": adapter.probe},
            metrics=reply.metrics | trainer.seconds | {"publish/export_s": seconds},
        )

    return await run_step(
        at,
        "export_adapter",
        inputs={"state": state.sha256},
        config={"adapter": config.deciding["adapter"], "version": version},
        body=body,
    )


@step("new_adapter")
async def new_adapter(at: Start, origin: dict[str, Any] | None = None) -> State | StepRecord:
    """The state that the first iteration starts from: that of `origin`, another run's commit, or a fresh adapter, or
    the one that the config names."""
    config = at.config
    forked = BlobRef.from_json(origin["state"]) if origin else None

    async def body() -> StepResult:
        if forked is not None:
            return StepResult(outputs={"state": forked})
        trainer = await roles.trainer(config, at.model_path)
        state = await trainer.call_all(
            "new_state",
            deadline_s=config.deadlines.train_s,
            store=at.store,
            adapter=config.adapter,
            seed=config.seed,
        )
        return StepResult(outputs={"state": state}, metrics=trainer.seconds)

    deciding = config.deciding
    return await run_step(
        at,
        "new_adapter",
        inputs={"state": forked.sha256} if forked else {},
        config={section: deciding[section] for section in ("model", "adapter")},
        body=body,
    )


def exported(at: Start, record: StepRecord) -> AdapterRef:
    """The adapter that an export step recorded."""
    files: dict[str, BlobRef] = {file: record.output(file) for file in ("weights", "config", "probe")}
    return AdapterRef(name=at.config.adapter.name, version=at.n + 1, **files)
