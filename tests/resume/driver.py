"""A driver that kills itself: `python -m tests.resume.driver RUN STORE ITERATIONS [WHEN COMMIT IT]`.

WHEN is `before` or `after`, COMMIT a step's name or `COMMIT`: at that commit of iteration IT the process gets SIGKILL.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from flows.train import train
from lora_rl.cluster import connect
from lora_rl.store import RunRecords, StepRecord


def arm(when: str, commit: str, it: int) -> None:
    """Makes the chosen commit fatal."""

    def fatal(method: Any, matches: Any) -> Any:
        def wrapped(self: RunRecords, n: int, document: Any) -> Any:
            hit = n == it and matches(document)
            if hit and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = method(self, n, document)
            if hit:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    if commit == "COMMIT":
        RunRecords.commit_iteration = fatal(RunRecords.commit_iteration, lambda document: True)
    else:
        RunRecords.commit_step = fatal(
            RunRecords.commit_step, lambda document: isinstance(document, StepRecord) and document.step == commit
        )


if __name__ == "__main__":
    run, store, iterations, *kill = sys.argv[1:]
    if kill:
        arm(kill[0], kill[1], int(kill[2]))
    connect()
    asyncio.run(train(run=run, store=store, iterations=int(iterations)))
