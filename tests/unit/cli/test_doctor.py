"""What `lora-rl doctor` asks for is what a run needs."""

import os
import signal
import socket
import sys
from types import SimpleNamespace

import psutil
import pytest

from lora_rl.cli import doctor as module
from lora_rl.cluster import workstation
from lora_rl.cluster.processes import spawn
from lora_rl.config import EngineConfig
from lora_rl.preflight import RUNTIME_GIB
from tests.processes import wait_until

GIB = 2**30


def room(monkeypatch: pytest.MonkeyPatch, *, memory: float, disk: float) -> list[bool]:
    """Whether memory and disk are well with so many GiB free."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=memory * GIB))
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: SimpleNamespace(free=disk * GIB))
    return [not finding.mend for finding in module._room()]


def test_memory_is_what_preflight_wants_and_disk_has_a_measure_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = RUNTIME_GIB + EngineConfig().kv_cache_gib
    assert needed < 7, "the machine of README has 8 GB in all"
    assert room(monkeypatch, memory=needed, disk=1.9) == [True, False]
    assert room(monkeypatch, memory=needed - 0.1, disk=2) == [False, True]


def test_a_taken_port_of_a_broken_workstation_names_what_ended(folder, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = [sys.executable, "-c", "import signal; signal.pause()"]
    servers = [spawn(name, wait, {}) for name in ("prefect", "ray")]
    try:
        workstation._record(workstation.Workstation(ray_address="", prefect_api_url="", servers=servers))
        os.kill(servers[1].pid, signal.SIGKILL)
        wait_until(lambda: not servers[1].alive, "death")
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            finding = module._port("prefect port", taken.getsockname()[1], "--prefect-port")
        assert "ray has ended" in finding.mend
    finally:
        workstation.down()
