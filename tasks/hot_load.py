"""Bringing an adapter into every engine."""

import asyncio

from prefect.client.schemas.objects import State
from prefect.states import Completed

from lora_rl.cluster import roles
from lora_rl.cluster.actors import ActorGroup
from lora_rl.cluster.calls import call
from lora_rl.engine import PublishReply
from lora_rl.store import AdapterRef, StepRecord
from lora_rl.tracking import publish_metrics
from tasks.context import Iteration
from tasks.step import StepResult, logs_of, run_step, step


async def serve(at: Iteration, adapter: AdapterRef) -> tuple[ActorGroup, list[PublishReply]]:
    """The engines, each serving `adapter`, and what the replicas that lacked it answered.

    An engine is asked what it serves, never assumed: it may have been restarted. A failed load keeps the old adapter.
    """
    deadlines = at.config.deadlines
    engines = await roles.engines(at.config, at.model_path)
    async with logs_of(engines):
        serving = await asyncio.gather(
            *(call(engine.serving, deadline_s=deadlines.publish_s) for engine in engines.handles)
        )
        missing = [
            engine
            for engine, versions in zip(engines.handles, serving, strict=True)
            if versions.get(adapter.label) != adapter.digest
        ]
        publish = {"deadline_s": deadlines.publish_s, "store": at.store, "adapter": adapter}
        replies = await asyncio.gather(*(call(engine.publish, **publish) for engine in missing))
    return engines, list(replies)


@step("hot_load")
async def hot_load(at: Iteration, adapter: AdapterRef) -> State | StepRecord | None:
    """Every engine replica serves `adapter` afterwards. Never memoised; engines already right end as InSync."""
    record = None
    if adapter != at.adapter:
        record = await asyncio.to_thread(at.records.step_record, at.n, "hot_load")
        if record is None or record.inputs["adapter"] != adapter.digest:
            return await _first_load(at, adapter)
    _, replies = await serve(at, adapter)
    return record if replies else Completed(name="InSync", message=f"{adapter.label} is served", data=record)


async def _first_load(at: Iteration, adapter: AdapterRef) -> State | StepRecord:
    async def body() -> StepResult:
        _, replies = await serve(at, adapter)
        return StepResult(outputs={}, metrics=publish_metrics(replies))

    return await run_step(
        at, "hot_load", inputs={"adapter": adapter.digest}, config={"version": adapter.label}, body=body
    )
