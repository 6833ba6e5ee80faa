"""Processes that must not outlive the one that started them."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
# opened at import: between fork and exec nothing may be loaded
_libc = ctypes.CDLL(None, use_errno=True)


def kill_me_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends. Linux only; raises OSError if refused."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
