"""Waiting for processes, whether they run, and ports for them, on machines that are slow, busy, or reap nobody."""

import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from lora_rl.cluster.workstation import current_workstation

DEADLINE_S = 120.0
"""For what takes seconds: only a machine where it never comes true waits this long."""

PORTS = range(20_000, 30_000)
"""Above those that Ray gives to its workers, below those that a kernel gives to whoever asks for any."""

HOSTS = {"engine": "ray::EngineHost", "trainer": "ray::TrainerHost", "rollout": "ray::RolloutHost"}
"""What the commands of our actors begin with, by role."""


def wait_until(ready: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Polls until `ready()`. Raises TimeoutError that names `what`."""
    end = time.monotonic() + deadline_s
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not so after {deadline_s} s")
        time.sleep(0.05)


def running(pid: int) -> bool:
    """Whether that process runs. One that has ended does not, also where its parent or init never reaps it."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False


def named_children(pid: int, name: str) -> list[psutil.Process]:
    """The running descendants of a process whose command begins with `name`."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if running(process.pid) and " ".join(process.cmdline()).startswith(name):
                found.append(process)
    return found


def the_children(pid: int, name: str, count: int) -> list[psutil.Process]:
    """The `count` running descendants whose command begins with `name`, by number.

    Looks again where it sees more or fewer: a single look has missed one of two that ran. Raises TimeoutError.
    """
    found: list[psutil.Process] = []

    def as_many() -> bool:
        found[:] = sorted(named_children(pid, name), key=lambda process: process.pid)
        return len(found) == count

    try:
        wait_until(as_many, f"{count} running {name} below process {pid}")
    except TimeoutError as error:
        error.add_note(f"there are {[process.pid for process in found]} among {named_children(pid, '')}")
        raise
    return found


def ray_head() -> int:
    """Process of this workstation's Ray head; its actors are among its descendants."""
    station = current_workstation()
    assert station is not None
    return next(server.pid for server in station.servers if server.name == "ray")


def actor_pids() -> dict[str, int]:
    """Process of each actor of this workstation, one of a kind, by its role."""
    return {role: the_children(ray_head(), host, 1)[0].pid for role, host in HOSTS.items()}


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on, and that no connection or listener gets by chance before they are used."""
    found: list[int] = []
    while len(found) < count:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found
