"""Where fingerprint, reuse and commit live, once for all steps."""

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed
from prefect.tasks import Task

from lora_rl.cluster.actors import ActorGroup
from lora_rl.errors import ActorLost, DeadlineExceeded
from lora_rl.store import BlobRef, StepRecord, fingerprint, utc_now
from tasks.context import Start

P = ParamSpec("P")
T = TypeVar("T")

RETRIES_AFTER_LOST_ACTOR = 2

REUSED = "Reused"
"""State of a run whose outcome was committed before: it ended without doing anything."""


async def _lost_actor(_task: Task, _run: TaskRun, state: State) -> bool:
    """Only a dead actor is worth another try: it is started anew. Everything else would fail the same way."""
    return isinstance(await state.aresult(raise_on_failure=False), ActorLost)


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step made: blobs in the store, numbers to report, small values for the steps after it."""

    outputs: Mapping[str, BlobRef]
    metrics: Mapping[str, float] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)


def step(name: str) -> Callable[[Callable[P, Awaitable[State | T]]], Callable[P, Awaitable[T]]]:
    """A Prefect task whose caller gets the outcome itself, also where the run ended as Reused or InSync."""

    def decorate(body: Callable[P, Awaitable[State | T]]) -> Callable[P, Awaitable[T]]:
        run = task(
            name=name,
            task_run_name=name,
            cache_policy=NO_CACHE,
            persist_result=False,
            retries=RETRIES_AFTER_LOST_ACTOR,
            retry_condition_fn=_lost_actor,
        )(body)

        @functools.wraps(body)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            outcome: Any = await run(*args, **kwargs)
            return await outcome.aresult() if isinstance(outcome, State) else outcome

        return call

    return decorate


async def run_step(
    at: Start,
    name: str,
    *,
    inputs: Mapping[str, str],
    config: Mapping[str, Any],
    body: Callable[[], Awaitable[StepResult]],
) -> State | StepRecord:
    """Runs `body` and commits what it made, or takes the committed record of the same inputs and config."""
    records = at.records
    wanted = fingerprint(name, inputs, config, at.config.seed)
    found = await asyncio.to_thread(records.step_record, at.n, name)
    if found is not None:
        if found.fingerprint == wanted and await asyncio.to_thread(records.valid, found):
            return Completed(name=REUSED, message=f"committed {found.started}", data=found)
        get_run_logger().warning("%s: its record is of other inputs, or its outputs are gone; doing it again", name)
        await asyncio.to_thread(records.discard_step, at.n, name)
    attempt = await asyncio.to_thread(records.begin_attempt, at.n, name)
    started, clock = utc_now(), time.monotonic()
    result = await body()
    record = StepRecord(
        step=name,
        fingerprint=wanted,
        inputs=dict(inputs),
        outputs={key: ref.to_json() for key, ref in result.outputs.items()},
        metrics=dict(result.metrics),
        values=dict(result.values),
        started=started,
        seconds=round(time.monotonic() - clock, 3),
        attempt=attempt,
    )
    return await asyncio.to_thread(records.commit_step, at.n, record)


@asynccontextmanager
async def logs_of(group: ActorGroup) -> AsyncIterator[None]:
    """What the actors log meanwhile goes into the log of this task run, also when the call fails."""
    logger = get_run_logger()
    try:
        yield
    finally:
        try:
            for level, text in await group.drain_logs():
                logger.log(level, text)
        except (ActorLost, DeadlineExceeded) as error:
            logger.warning("the actors' log is missing: %s", error)
