"""Calls to actors: awaited with a deadline, cancelled when it passes, errors as the actor raised them."""

import asyncio
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError, TaskCancelledError, WorkerCrashedError

from lora_rl.errors import ActorLost, DeadlineExceeded


async def call(method: Any, *, deadline_s: float, **arguments: Any) -> Any:
    """Result of `method.remote(**arguments)`.

    Raises DeadlineExceeded, ActorLost, or the error that the actor raised. The call is cancelled when we stop waiting.
    An actor's own TimeoutError or CancelledError reaches us as that kind and a RayTaskError at once: those go first.
    """
    name = method._method_name
    reference = method.remote(**arguments)
    try:
        return await asyncio.wait_for(reference, deadline_s)
    except RayTaskError as error:
        raise _original(error) from None
    except TimeoutError as error:
        ray.cancel(reference, force=False)
        raise DeadlineExceeded(f"{name}: no answer within {deadline_s:g} s, cancelled; raise its deadline") from error
    except asyncio.CancelledError:
        ray.cancel(reference, force=False)
        raise
    except (RayActorError, WorkerCrashedError, TaskCancelledError) as error:
        raise ActorLost(f"{name}: the actor died or became unreachable: {error}") from error


def _original(error: RayTaskError) -> BaseException:
    """The error as the actor raised it, with the actor's traceback as a note."""
    cause = error.cause
    if not isinstance(cause, BaseException):
        return error
    cause.add_note(str(error))
    return cause
