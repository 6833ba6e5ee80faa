"""One run uses a cluster at a time: two would end each other's actors."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import ray
from ray.actor import ActorHandle

from lora_rl.cluster.actors import find_actor
from lora_rl.cluster.calls import call
from lora_rl.cluster.connect import NAMESPACE, connect
from lora_rl.errors import ActorLost, ClusterError

NAME = "lease"
WAIT_S = 60.0
"""A driver that was killed gives its lease back when Ray has noticed: within seconds."""
POLL_S = 0.5
ANSWER_S = 120.0
"""Its process starts first, which takes a busy machine long."""

_held: ContextVar[str | None] = ContextVar("lease_held", default=None)
"""The run that holds the cluster in this flow: its iterations are its own."""


class Lease:
    """An actor that ends with the driver that made it, however that ends; its name is the lease."""

    def __init__(self, run: str) -> None:
        self._run = run

    def holder(self) -> str:
        """The run that uses the cluster."""
        return self._run


@asynccontextmanager
async def lease(run: str) -> AsyncIterator[None]:
    """The cluster for `run` alone; at once where the caller holds it for the same run.

    Raises ClusterError, naming the other run, where one keeps it for `WAIT_S`.
    """
    if _held.get() == run:
        yield
        return
    connect()
    give_up = time.monotonic() + WAIT_S
    while (taken := _take(run)) is None:
        if time.monotonic() > give_up:
            raise ClusterError(f"run {run}: the cluster is in use by {await _holder()}; wait for its end, or end it")
        await asyncio.sleep(POLL_S)
    outer = _held.set(run)
    try:
        await call(taken.holder, deadline_s=ANSWER_S)
        yield
    finally:
        _held.reset(outer)
        ray.kill(taken)


def _take(run: str) -> ActorHandle | None:
    lease_class: Any = ray.remote(Lease)
    try:
        return lease_class.options(name=NAME, namespace=NAMESPACE, num_cpus=0).remote(run)
    except ValueError:  # the name is taken
        return None


async def _holder() -> str:
    other = find_actor(NAME)
    try:
        return f"run {await call(other.holder, deadline_s=ANSWER_S)}" if other else "another run"
    except ActorLost:
        return "another run"
