"""Processes that must not outlive the one that started them."""

import ctypes
import multiprocessing
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """The kernel kills this process (a child by `multiprocessing`) when the thread that started it ends. Linux only."""
    parent = multiprocessing.parent_process()
    if parent is None or sys.platform != "linux":
        return
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent.pid:
        # The parent died before the call above.
        os.kill(os.getpid(), signal.SIGKILL)
