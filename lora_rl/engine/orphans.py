"""Processes that must not outlive the one that started them."""

import multiprocessing
import os
import signal
import sys

from lora_rl.parent_death import kill_me_with_parent


def die_with_parent() -> None:
    """The kernel kills this process (a child by `multiprocessing`) when the thread that started it ends. Linux only."""
    parent = multiprocessing.parent_process()
    if parent is None or sys.platform != "linux":
        return
    kill_me_with_parent()
    if os.getppid() != parent.pid:
        # The parent died before the call above.
        os.kill(os.getpid(), signal.SIGKILL)
