"""Server processes of this machine: started with their log in a file, ended with all their children."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from lora_rl.errors import ClusterError, DeadlineExceeded
from lora_rl.home import home
from lora_rl.parent_death import kill_me_with_parent

KILLED_S = 60.0
"""Within this a process that was killed is gone, also a large one on a busy machine."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """A process that we started. Its start tells it from a later process with the same number."""

    name: str
    pid: int
    started: str
    """The machine's boot, and clock ticks since then: the time of day moves where the clock is set."""
    log: str

    @property
    def alive(self) -> bool:
        try:
            return _started(self.pid) == self.started and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


def spawn(name: str, command: Sequence[str], env: Mapping[str, str], *, dies_with_us: bool = False) -> Server:
    """Starts `command` in a session of its own; with `dies_with_us` the kernel ends it even when we are killed."""
    log = home() / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=kill_me_with_parent if dies_with_us else None,
        )
    return Server(name=name, pid=process.pid, started=str(_started(process.pid)), log=str(log))


def end(server: Server, grace_s: float = 15.0) -> bool:
    """Ends the process and its children, also where it died and left them: asks first, then kills what is left.

    Returns whether there was anything to end.
    """
    family = _family(server)
    asked = [process for process in family if process.pid == server.pid] or family
    for process in asked:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    left = {*_wait(family, grace_s), *_family(server)}
    give_up = time.monotonic() + KILLED_S
    while left and time.monotonic() < give_up:
        for survivor in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                survivor.kill()
        _wait(left, give_up - time.monotonic())
        left = _family(server)  # one may have started another before it was killed
    return bool(family)


def _wait(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still run after `seconds`; sooner if none does. Zombies do not count: not every init reaps orphans."""
    give_up = time.monotonic() + seconds
    while (left := [process for process in processes if _runs(process)]) and time.monotonic() < give_up:
        time.sleep(0.05)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _family(server: Server) -> set[psutil.Process]:
    """The processes of the server's session and all their descendants. The session outlives its leader."""
    if not server.started.startswith(_boot()):
        return set()
    if _started(server.pid) not in (None, server.started):
        return set()  # the number is another process's by now, so no session of ours is left
    family: set[psutil.Process] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == server.pid and process.status() != psutil.STATUS_ZOMBIE:
                family |= {process, *process.children(recursive=True)}
    return family


def _started(pid: int) -> str | None:
    """When the process started, as `Server` keeps it; None where there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return f"{_boot()} {fields[19]}"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def require_free_port(port: int, option: str) -> None:
    """Raises ClusterError when something listens on `port`."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ClusterError(
                f"{option}: port {port} is taken ({error.strerror}); end what listens there or choose another"
            ) from error


def held_port(address: str = "127.0.0.1") -> socket.socket:
    """Bound to a free port of this host's `address`, which nobody gets by chance until it is closed.

    A server that sets SO_REUSEADDR, as most do, can listen there meanwhile.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((address, 0))
    return held


def wait_for_http(server: Server, url: str, deadline_s: float) -> None:
    """Waits until `url` answers 200. Raises ClusterError when the server ends, DeadlineExceeded when it is too slow."""
    give_up = time.monotonic() + deadline_s
    while time.monotonic() < give_up:
        if not server.alive:
            raise ClusterError(f"{server.name} ended while starting; see {server.log}\n{last_lines(server)}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=10).status_code == httpx.codes.OK:
                return
        time.sleep(0.1)
    raise DeadlineExceeded(f"{server.name}: {url} did not answer within {deadline_s:g} s; see {server.log}")


def last_lines(server: Server, count: int = 10) -> str:
    """The end of its log."""
    return "\n".join(Path(server.log).read_text(errors="replace").splitlines()[-count:])
