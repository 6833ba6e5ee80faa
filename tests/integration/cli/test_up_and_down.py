"""`lora-rl up` and `down` from their own home: nothing of it stays, and nothing else is touched."""

import base64
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from lora_rl.cluster import workstation
from tests.integration.cli.conftest import PROGRAM, TINY
from tests.processes import free_ports, running, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    for name in ("LORA_RL_HOME", "PREFECT_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    for name in ("RAY_ADDRESS", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    yield dict(os.environ)
    workstation.down()


def command(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def sessions(station: workstation.Workstation) -> list[int]:
    """Every process in a session of one of its servers."""
    leaders = {server.pid for server in station.servers}
    found = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getsid(pid) in leaders and running(pid):
                found.append(pid)
    return found


def prefect_answers(station: workstation.Workstation, headers: dict[str, str]) -> list[int]:
    """Status of the UI, of the health check and of a question."""
    api, url = station.prefect_api_url, station.prefect_api_url.removesuffix("/api")
    options: dict[str, Any] = {"headers": headers, "timeout": 30, "follow_redirects": True}
    health = [httpx.get(address, **options).status_code for address in (url, f"{api}/health")]
    return [*health, httpx.post(f"{api}/flows/filter", json={}, **options).status_code]


def test_down_ends_all_that_up_started_and_nothing_else(environment) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    try:
        ray_port, prefect_port = map(str, free_ports(2))
        up = command(environment, "up", "--ray-port", ray_port, "--prefect-port", prefect_port)
        assert up.returncode == 0, up.stdout + up.stderr
        station = workstation.current_workstation()
        assert station is not None
        again = command(environment, "up")
        assert (again.returncode, "already up" in again.stderr) == (1, True)
        assert prefect_answers(station, {}) == [200, 200, 401]
        token = Path(environment["LORA_RL_HOME"], "ray-token")
        assert str(token) in up.stdout
        shown = base64.b64encode(token.read_bytes()).decode()
        assert prefect_answers(station, {"Authorization": f"Basic {shown}"}) == [200, 200, 200]
        arguments = [argument for pid in sessions(station) for argument in psutil.Process(pid).cmdline()]
        assert not any(token.read_text() in argument for argument in arguments)
        ray = next(server for server in station.servers if server.name == "ray")
        assert len(sessions(station)) > len(station.servers)

        os.kill(ray.pid, signal.SIGKILL)
        wait_until(lambda: not ray.alive, "death of ray")
        refused = command(environment, "run", str(TINY))
        assert (refused.returncode, "ray has ended" in refused.stderr) == (1, True)
        down = command(environment, "down")
        assert down.stdout == "ended deployments, ray, prefect\n"
        assert sessions(station) == []
        assert bystander.poll() is None
        assert command(environment, "down").stdout == "nothing was up\n"
    finally:
        bystander.kill()
        bystander.wait()
