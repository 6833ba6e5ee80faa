"""Colocated roles take turns on their GPUs: before one works, the other gives its memory back.

Nothing that the store lacks is in that memory, so an actor that cannot give it back, or cannot come back, is ended: the
next call starts another, which reads what it needs.
"""

import asyncio
import logging
import time

from lora_rl.cluster.actors import ActorGroup, Cast, ended, find_actor, standing_names
from lora_rl.cluster.calls import call
from lora_rl.errors import ActorLost, EngineDied

logger = logging.getLogger("lora_rl.cluster")

DONE = ("offloaded", "slept", "onloaded", "woke")
"""Replies of actors that moved their memory; others had nothing to move."""


async def step_aside(cast: Cast, method: str, *, deadline_s: float) -> dict[str, float]:
    """`method` (`offload` or `sleep`) on the actors of `cast` that stand; seconds, where any memory was moved.

    Actors of the role made from anything else are ended: they have GPUs too. So is one that fails.
    """
    others = [find_actor(name) for name in set(standing_names(cast.role)) - set(cast.names)]
    await asyncio.gather(*(ended(handle) for handle in others if handle))
    standing = [handle for name in cast.names if (handle := find_actor(name))]
    started = time.monotonic()
    replies = await asyncio.gather(
        *(call(getattr(handle, method), deadline_s=deadline_s) for handle in standing), return_exceptions=True
    )
    failed = [reply for reply in replies if isinstance(reply, BaseException)]
    if failed:
        logger.warning("ending actors of %s, which could not %s: %s", cast.role, method, failed[0])
        lost = [
            handle
            for handle, reply in zip(standing, replies, strict=True)
            if isinstance(reply, BaseException) or cast.ranked
        ]
        await asyncio.gather(*(ended(handle) for handle in lost))
    return _seconds(method, started, replies)


async def come_back(group: ActorGroup, method: str, *, deadline_s: float) -> dict[str, float]:
    """`method` (`onload` or `wake`) on all actors of the group; seconds, where any memory was moved.

    Raises ActorLost where one cannot: it is ended, or has ended what it could not wake.
    """
    started = time.monotonic()
    calls = (call(getattr(handle, method), deadline_s=deadline_s) for handle in group.handles)
    replies = await asyncio.gather(*calls, return_exceptions=True)
    failures = [(rank, reply) for rank, reply in enumerate(replies) if isinstance(reply, BaseException)]
    useless = [group.handles[rank] for rank, error in failures if not isinstance(error, EngineDied)]
    if useless:
        await asyncio.gather(*(ended(handle) for handle in (group.handles if group.ranked else useless)))
    if failures:
        rank, error = failures[0]
        if not isinstance(error, Exception):
            raise error
        raise ActorLost(f"{group.role}-{rank}: could not {method}: {error}") from error
    return _seconds(method, started, replies)


def _seconds(method: str, started: float, replies: list[str | BaseException]) -> dict[str, float]:
    moved = any(reply in DONE for reply in replies)
    return {f"time/{method}_s": time.monotonic() - started} if moved else {}
