"""Graders that behave as users' graders do, well and badly. Named in configs as `tests.unit.rewards.graders:<name>`."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np

from lora_rl.data.types import Sample


def good(sample: Sample) -> float:
    return float(len(sample.response_text))


async def awaited(sample: Sample, *, factor: float = 1.0) -> float:
    await asyncio.sleep(0)
    return factor * len(sample.response_text)


def by_text(sample: Sample) -> Any:
    """Does what the answer says."""
    match sample.response_text:
        case "hang":
            while True:
                pass
        case "raise":
            raise ValueError(f"cannot grade {sample.id}")
        case "raise surrogate":
            raise ValueError("\ud800" * 10_000)
        case "exit":
            os._exit(3)
        case "sys.exit":
            sys.exit(4)
        case "abort":
            os.abort()
        case "none":
            return None
        case "nan":
            return float("nan")
        case "text":
            return "1.0"
        case "bool":
            return True
        case "numpy":
            return np.float32(0.5)
        case "print":
            print("x" * 1_000_000)
            return 1.0
        case "pid":
            return os.getpid()
        case "orphan":
            return subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid
        case _:
            return 1.0


def alarmed(sample: Sample) -> float:
    """Uses a signal handler, which only the main thread of a process may set."""
    heard: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: heard.append(number))
    signal.raise_signal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)
    return float(bool(heard) and threading.current_thread() is threading.main_thread())


def unannotated(sample, threshold=1):  # type: ignore[no-untyped-def]
    return threshold


def slow(sample: Sample) -> float:
    """Busy for a second."""
    until = time.monotonic() + 1.0
    while time.monotonic() < until:
        pass
    return 1.0


async def hang_awaiting(sample: Sample) -> float:
    await asyncio.get_running_loop().create_future()
    return 1.0


def imports_torch(sample: Sample) -> float:
    return float("torch" in sys.modules)


NOT_A_FUNCTION = 1
