"""Memory that vLLM's processes share: freed with the last of them, also when all are killed."""

import re
from contextlib import suppress
from itertools import chain
from pathlib import Path

import psutil

MEMORY = Path("/dev/shm")
NAMES = ("psm_*", "sem.mp-*", "vllm_dist_*", "*-cpushm_*")
"""Python's segments and semaphores, and what vLLM 0.32 and 0.26 call those of sums between ranks on a CPU."""

_MAPPED = re.compile(rf" (\d+) +{MEMORY}/", re.MULTILINE)
"""The inode in a line of `/proc/<pid>/maps`: who makes a semaphore has mapped it under another name."""


def forget_names() -> None:
    """Unlinks what our child processes have mapped: nobody has to when they end. All of them must have opened theirs.

    Ray kills an actor's process group at once, Python's resource tracker too; a pair of ranks left 17 MB.
    """
    inodes: set[int] = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(OSError):  # it has ended
            inodes |= set(map(int, _MAPPED.findall(Path(f"/proc/{process.pid}/maps").read_text(errors="replace"))))
    for path in chain.from_iterable(map(MEMORY.glob, NAMES)):
        with suppress(FileNotFoundError):  # another's, and gone
            if path.stat().st_ino in inodes:
                path.unlink()
