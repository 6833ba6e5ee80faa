"""The long-lived actors: found by name, started where missing, replaced where they were made for another config.

Names are `<role>-<rank>-<digest of what the actor was made from>`, so a lookup also tells whether the actor fits.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import ray.util
from ray.actor import ActorHandle

from lora_rl.cluster.calls import call
from lora_rl.cluster.connect import NAMESPACE, connect
from lora_rl.cluster.processes import free_port

logger = logging.getLogger("lora_rl.cluster")

LOGS_DEADLINE_S = 10.0

_log_positions: dict[ActorHandle, int] = {}
"""Number of the last line fetched from each actor: a group lasts for one step only."""


@dataclass
class ActorGroup:
    """Actors of one role. `call_all` is for ranks that meet in collectives: when one fails, none is left waiting."""

    role: str
    handles: Sequence[ActorHandle]

    async def call_first(self, method: str, *, deadline_s: float, **arguments: Any) -> Any:
        """Result of `method` on the first actor."""
        return await call(getattr(self.handles[0], method), deadline_s=deadline_s, **arguments)

    async def call_all(self, method: str, *, deadline_s: float, **arguments: Any) -> Any:
        """Result of `method` on the first actor, after all have done it.

        A synchronous actor cannot be interrupted: on cancellation, a deadline or another rank's failure all are
        killed. They hold nothing that the store lacks.
        """
        calls = [
            asyncio.ensure_future(call(getattr(handle, method), deadline_s=deadline_s, **arguments))
            for handle in self.handles
        ]
        try:
            return (await asyncio.gather(*calls))[0]
        except BaseException as error:
            if len(self.handles) > 1 or not isinstance(error, Exception) or isinstance(error, TimeoutError):
                self.kill()
            raise
        finally:
            for pending in calls:
                pending.cancel()

    async def drain_logs(self) -> list[tuple[int, str]]:
        """(level, text) of what the actors logged since this process last asked them."""
        lines = []
        for rank, handle in enumerate(self.handles):
            after = _log_positions.get(handle, 0)
            for number, level, text in await call(handle.drain_logs, deadline_s=LOGS_DEADLINE_S, after=after):
                _log_positions[handle] = number
                lines.append((level, f"[{self.role}-{rank}] {text}"))
        return lines

    def kill(self) -> None:
        """Ends the actors at once."""
        for handle in self.handles:
            ray.kill(handle)


def find_or_start(
    role: str,
    host: type,
    arguments: Mapping[str, Any],
    *,
    count: int = 1,
    per_rank: bool = False,
    identity: Mapping[str, Any],
    concurrency: int | None = None,
) -> ActorGroup:
    """The group of `count` actors of `role` made from `identity`; started where one of them is missing.

    Actors of the role made from anything else are ended first: one run uses a cluster at a time, and memory is short.
    """
    connect()
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    names = [f"{role}-{rank}-{digest}" for rank in range(count)]
    named = ray.util.list_named_actors(all_namespaces=True)
    ours = {str(entry["name"]) for entry in named if entry["namespace"] == NAMESPACE}  # pyright: ignore
    present = {name for name in ours if name.startswith(f"{role}-")}
    found = [handle for name in names if name in present and (handle := find_actor(name))]
    if len(found) == count:
        return ActorGroup(role, found)
    for name in present:
        logger.info("ending actor %s: not part of %s", name, digest)
        end_actor(name)
    options: dict[str, Any] = {"namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0}
    if concurrency:
        options["max_concurrency"] = concurrency
    remote_class = ray.remote(host)
    handles: list[Any] = [
        remote_class.options(name=name, get_if_exists=True, **options).remote(
            **arguments, **({"rank": rank, "world_size": count} if per_rank else {})
        )
        for rank, name in enumerate(names)
    ]
    return ActorGroup(role, handles)


def find_actor(name: str) -> ActorHandle | None:
    """The living actor of that name, if there is one."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def end_actor(name: str) -> None:
    """Ends the actor of that name, if there is one."""
    handle = find_actor(name)
    if handle is not None:
        ray.kill(handle)


def free_rendezvous() -> str:
    """An address on this host where the ranks of a trainer can meet."""
    return f"tcp://127.0.0.1:{free_port()}"


async def started(group: ActorGroup, *, deadline_s: float, **arguments: Any) -> ActorGroup:
    """The group once each actor's `start` has returned. `start` does its work once; later calls return at once.

    When one of them fails, hangs or is no longer waited for, all are killed: a start cannot be interrupted.
    """
    try:
        await asyncio.gather(*(call(handle.start, deadline_s=deadline_s, **arguments) for handle in group.handles))
    except BaseException:
        group.kill()
        raise
    return group
