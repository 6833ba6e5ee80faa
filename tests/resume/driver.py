"""A driver with a fatal moment: `python -m tests.resume.driver RUN STORE ITERATIONS [VICTIMS WHEN STEP IT]`.

WHEN is `begin` (an execution of the step begins), `before` or `after` (its commit); STEP a step's name or `COMMIT`. At
that moment of iteration IT the VICTIMS get SIGKILL: some of `engine`, `trainer`, `rollout` and `driver`, joined by `+`.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from flows.train import train
from lora_rl.cluster.connect import connect
from lora_rl.store import RunRecords, StepRecord
from tests.processes import HOSTS, ray_head, the_children


def kill(victims: list[str]) -> None:
    """Kills actors of this workstation, and last the driver."""
    for victim in (HOSTS[name] for name in victims if name != "driver"):
        the_children(ray_head(), victim, 1)[0].kill()
    if "driver" in victims:
        os.kill(os.getpid(), signal.SIGKILL)


def arm(victims: list[str], when: str, step: str, it: int) -> None:
    """Makes the chosen moment fatal, once."""

    def fatal(method: Callable[..., Any], matches: Callable[[Any], bool]) -> Callable[..., Any]:
        armed = True

        def wrapped(self: RunRecords, n: int, what: Any) -> Any:
            nonlocal armed
            hit = armed and n == it and matches(what)
            armed = armed and not hit
            if hit and when != "after":
                kill(victims)
            result = method(self, n, what)
            if hit and when == "after":
                kill(victims)
            return result

        return wrapped

    if when == "begin":
        RunRecords.begin_attempt = fatal(RunRecords.begin_attempt, lambda name: name == step)
    elif step == "COMMIT":
        RunRecords.commit_iteration = fatal(RunRecords.commit_iteration, lambda document: True)
    else:
        RunRecords.commit_step = fatal(
            RunRecords.commit_step, lambda record: isinstance(record, StepRecord) and record.step == step
        )


if __name__ == "__main__":
    run, store, iterations, *fate = sys.argv[1:]
    if fate:
        arm(fate[0].split("+"), fate[1], fate[2], int(fate[3]))
    connect()
    asyncio.run(train(run=run, store=store, iterations=int(iterations)))
