"""Bringing an adapter into every engine."""

import asyncio

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed

from lora_rl.cluster import roles
from lora_rl.cluster.actors import ActorGroup
from lora_rl.cluster.calls import call
from lora_rl.engine import PublishReply
from lora_rl.errors import LoraRlError
from lora_rl.store import AdapterRef, StepRecord
from lora_rl.tracking import publish_metrics
from tasks.context import START, Iteration, Start
from tasks.step import StepResult, logs_of, run_step, step


async def serve(at: Iteration, adapter: AdapterRef) -> tuple[ActorGroup, list[PublishReply]]:
    """The engines, each serving `adapter`, and what the replicas that lacked it answered.

    An engine is asked what it serves, never assumed: it may have been restarted. A failed load keeps the old adapter,
    which all engines go on serving until each has the new one; the error names the replica.
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
        replies = await asyncio.gather(*(call(engine.publish, **publish) for engine in missing), return_exceptions=True)
    for engine, reply in zip(missing, replies, strict=True):
        if isinstance(reply, BaseException):
            raise _of_replica(engines.handles.index(engine), reply)
    return engines, [reply for reply in replies if isinstance(reply, PublishReply)]


async def stage(at: Start, label: str, handed_over: str | None) -> None:
    """Engines beside the trainer load what it hands over, and do not serve it yet. None is nothing to load.

    It saves time and nothing depends on it, so a failure is only logged: `hot_load` will meet it again.
    """
    if handed_over is None or at.n == START or at.config.placement.mode == "colocated":
        return
    deadline_s = at.config.deadlines.publish_s
    try:
        async with asyncio.timeout(deadline_s):
            engines = await roles.engines(at.config, at.model_path)
            await asyncio.gather(
                *(
                    call(engine.stage, deadline_s=deadline_s, label=label, directory=handed_over)
                    for engine in engines.handles
                )
            )
    except Exception as error:  # of any kind: an engine's own reach us as it raised them
        get_run_logger().warning("%s: not loaded while it is exported: %r", label, error)


def _of_replica(number: int, error: BaseException) -> BaseException:
    """The same error, naming the engine that raised it; all others have loaded the adapter or kept the old one."""
    if not isinstance(error, LoraRlError):
        return error
    named = type(error)(f"engine-{number}: {error}")
    named.__cause__ = error
    return named


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
        engines, replies = await serve(at, adapter)
        return StepResult(outputs={}, metrics=publish_metrics(replies) | engines.seconds)

    return await run_step(
        at, "hot_load", inputs={"adapter": adapter.digest}, config={"version": adapter.label}, body=body
    )
