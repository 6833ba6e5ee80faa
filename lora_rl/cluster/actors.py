"""The long-lived actors: found by name, started where missing, replaced where they were made for another config.

Names are `<role>-<rank>-<digest of what the actor was made from>`, so a lookup also tells whether the actor fits.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.util
from ray.actor import ActorHandle
from ray.exceptions import ActorUnschedulableError, RayActorError

from lora_rl.cluster.calls import call
from lora_rl.cluster.connect import NAMESPACE, connect
from lora_rl.cluster.gpus import Seat
from lora_rl.errors import ActorLost, DeadlineExceeded, PeerFailed

logger = logging.getLogger("lora_rl.cluster")

LOGS_DEADLINE_S = 10.0
CAUSE_DEADLINE_S = 60.0
"""In which Ray has noticed that a process died, after its peers have, on a busy machine too."""

END_S = 30.0
"""Within this a process that was killed is gone."""

_log_positions: dict[ActorHandle, int] = {}
"""Number of the last line fetched from each actor: a group lasts for one step only."""


@dataclass(frozen=True, kw_only=True)
class Cast:
    """What the actors of a role are made from."""

    role: str
    host: type
    arguments: Mapping[str, Any]
    identity: Mapping[str, Any]
    """What decides whether a standing actor fits."""
    count: int = 1
    ranked: bool = False
    """Whether they meet in collectives: each is told its rank, and they start and end together."""
    concurrency: int | None = None
    """Calls that an asynchronous actor takes at a time."""

    @property
    def names(self) -> list[str]:
        digest = hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()[:12]
        return [f"{self.role}-{rank}-{digest}" for rank in range(self.count)]


@dataclass
class ActorGroup:
    """Actors of one role. `call_all` is for ranks that meet in collectives: when one fails, none is left waiting."""

    role: str
    handles: Sequence[ActorHandle]
    ranked: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    """Of the turn on colocated GPUs that made these actors ready, as metrics; empty where they were."""

    async def call_first(self, method: str, *, deadline_s: float, **arguments: Any) -> Any:
        """Result of `method` on the first actor."""
        return await call(getattr(self.handles[0], method), deadline_s=deadline_s, **arguments)

    async def call_all(self, method: str, *, deadline_s: float, **arguments: Any) -> Any:
        """Result of `method` on the first actor, after all have done it.

        A synchronous actor cannot be interrupted: on cancellation, a deadline or another rank's failure all are
        killed. They hold nothing that the store lacks. Raises the error of the rank that failed first by itself, with
        its number in a note.
        """
        calls = [
            asyncio.ensure_future(call(getattr(handle, method), deadline_s=deadline_s, **arguments))
            for handle in self.handles
        ]
        try:
            await _cause_or_end(calls)
            self._raise_cause(calls)
            return calls[0].result()
        except BaseException as error:
            if len(self.handles) > 1 or not isinstance(error, Exception) or isinstance(error, TimeoutError):
                self.kill()
            raise
        finally:
            for pending in calls:
                pending.cancel()

    def _raise_cause(self, calls: Sequence[asyncio.Future[Any]]) -> None:
        """Raise what went wrong in one of the calls, if anything did."""
        failures = [(rank, error) for rank, call in enumerate(calls) if (error := _error(call)) is not None]
        if not failures:
            return
        rank, error = min(failures, key=lambda failure: isinstance(failure[1], PeerFailed))
        if len(self.handles) > 1:
            if isinstance(error, ActorLost):
                raise type(error)(f"{self.role} rank {rank}: {error}") from error
            error.add_note(f"{self.role} rank {rank} of {len(self.handles)} failed")
        raise error

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


async def find_or_start(cast: Cast, seats: Callable[[], Awaitable[Sequence[Seat]]] | None = None) -> ActorGroup:
    """The actors of `cast`. Missing ones are started, each in its seat where there are GPUs; ranks all or none.

    Actors of the role made from anything else are gone first: one run uses a cluster at a time, and memory is short.
    """
    connect()
    standing = {name: handle for name in standing_names(cast.role) if (handle := find_actor(name))}
    found = {name: standing[name] for name in cast.names if name in standing}
    if cast.ranked and len(found) < cast.count:
        found = {}
    unwanted = standing.keys() - found.keys()
    for name in unwanted:
        logger.info("ending actor %s: not part of what is wanted", name)
    await asyncio.gather(*(ended(standing[name]) for name in unwanted))
    missing = [rank for rank, name in enumerate(cast.names) if name not in found]
    placed = await seats() if seats and missing else None
    for rank in missing:
        found[cast.names[rank]] = _start(cast, rank, placed[rank] if placed else None)
    return ActorGroup(cast.role, [found[name] for name in cast.names], ranked=cast.ranked)


def standing_names(role: str) -> list[str]:
    """Names of all actors of the role, whatever they were made from."""
    named = ray.util.list_named_actors(all_namespaces=True)
    ours = (str(entry["name"]) for entry in named if entry["namespace"] == NAMESPACE)  # pyright: ignore
    return [name for name in ours if name.startswith(f"{role}-")]


def find_actor(name: str) -> ActorHandle | None:
    """The living actor of that name, if there is one."""
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


async def ended(handle: ActorHandle) -> None:
    """Ends the actor, and waits until Ray says that it is gone: only then is its memory free."""
    ray.kill(handle)
    ready: Any = handle.__ray_ready__
    try:
        async with asyncio.timeout(END_S):
            while True:
                try:
                    await ready.remote()
                except (RayActorError, ActorUnschedulableError):
                    return
    except TimeoutError as error:
        raise DeadlineExceeded(f"actor: was killed and is not gone within {END_S:g} s; see its node") from error


async def started(group: ActorGroup, *, deadline_s: float, **arguments: Any) -> ActorGroup:
    """The group once each actor's `start` has returned. `start` does its work once; later calls return at once.

    One that fails, hangs or is no longer waited for is killed, as a start cannot be interrupted; of ranks, all are.
    """
    starts = [asyncio.ensure_future(call(handle.start, deadline_s=deadline_s, **arguments)) for handle in group.handles]
    try:
        await (_cause_or_end(starts) if group.ranked else asyncio.wait(starts))
    finally:
        failed = [handle for handle, start in zip(group.handles, starts, strict=True) if not _succeeded(start)]
        if failed:
            (group if group.ranked else ActorGroup(group.role, failed)).kill()
        for start in starts:
            start.cancel()
    group._raise_cause(starts)
    return group


def _succeeded(start: asyncio.Future[Any]) -> bool:
    return start.done() and not start.cancelled() and start.exception() is None


def _error(call: asyncio.Future[Any]) -> BaseException | None:
    return call.exception() if call.done() and not call.cancelled() else None


async def _cause_or_end(calls: Sequence[asyncio.Future[Any]]) -> None:
    """Wait for all calls, or for one that failed by itself; a rank that merely lost a peer tells of such a one."""
    await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
    while errors := [error for call in calls if (error := _error(call)) is not None]:
        waiting = [call for call in calls if not call.done()]
        if not waiting or not all(isinstance(error, PeerFailed) for error in errors):
            return
        done, _ = await asyncio.wait(waiting, timeout=CAUSE_DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return


def _start(cast: Cast, rank: int, seat: Seat | None) -> ActorHandle:
    options: dict[str, Any] = {"namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0}
    arguments = dict(cast.arguments)
    if cast.concurrency:
        options["max_concurrency"] = cast.concurrency
    if cast.ranked:
        arguments |= {"rank": rank, "world_size": cast.count}
    if seat:
        options["scheduling_strategy"] = seat.strategy
        arguments["gpus"] = seat.gpus
    remote_class: Any = ray.remote(cast.host)
    return remote_class.options(name=cast.names[rank], get_if_exists=True, **options).remote(**arguments)
