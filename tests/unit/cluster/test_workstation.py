"""The record of what `up` started, with plain processes in the place of its servers."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lora_rl.cluster import workstation
from lora_rl.cluster.processes import spawn
from lora_rl.cluster.token import token_file
from lora_rl.cluster.workstation import SERVERS, Workstation, current_workstation, down, require_prefect, up
from lora_rl.errors import ClusterError
from tests.processes import free_ports, wait_until


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("LORA_RL_HOME", str(tmp_path))
    for name in ("RAY_ADDRESS", "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    yield tmp_path
    down()


def started(*names: str) -> Workstation:
    """A recorded workstation whose servers wait for a signal."""
    servers = [spawn(name, [sys.executable, "-c", "import signal; signal.pause()"], {}) for name in names]
    station = Workstation(ray_address="127.0.0.1:1", prefect_api_url="http://127.0.0.1:2/api", servers=servers)
    workstation._record(station)
    return station


def test_recorded_workstation_is_found_and_ended_in_reverse_order(home: Path) -> None:
    station = started(*SERVERS)
    assert current_workstation() == station
    assert down() == list(reversed(SERVERS))
    assert not any(server.alive for server in station.servers)
    assert current_workstation() is None
    assert [path.name for path in home.iterdir()] == ["logs"]
    assert down() == []


def test_what_dead_trainers_left_in_memory_is_freed_also_without_a_workstation(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = []
    monkeypatch.setattr(workstation, "remove_orphans", lambda: freed.append("memory"))
    assert down() == []
    assert freed == ["memory"]


def test_workstation_of_which_one_died_is_not_used_but_ended() -> None:
    station = started(*SERVERS)
    os.kill(station.servers[1].pid, signal.SIGKILL)
    wait_until(lambda: not station.servers[1].alive, "death")
    with pytest.raises(ClusterError, match=r"ray has ended, prefect, deployments still runs; see .*ray\.log; .*down"):
        current_workstation()
    assert down() == ["deployments", "prefect"]


def test_workstation_that_is_still_starting_is_not_used_but_ended() -> None:
    started("prefect", "ray")
    with pytest.raises(ClusterError, match="it is still starting, or its start was interrupted; `lora-rl down`"):
        current_workstation()
    assert down() == ["ray", "prefect"]


def test_workstation_that_ended_whole_is_no_hindrance() -> None:
    station = started(*SERVERS)
    for server in station.servers:
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda server=server: not server.alive, "death")
    assert current_workstation() is None


def test_a_second_one_is_refused_and_the_first_left_alone() -> None:
    station = started(*SERVERS)
    ray_port, prefect_port = free_ports(2)
    with pytest.raises(ClusterError, match="up: already up; `lora-rl down` ends it"):
        up(ray_port=ray_port, prefect_port=prefect_port)
    assert current_workstation() == station


def test_what_a_broken_one_left_is_ended_before_another_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    station = started("prefect", "ray")
    monkeypatch.setattr(workstation, "spawn", lambda *_: pytest.fail("started another although a port is taken"))

    def refuse(port: int, option: str) -> None:
        assert not any(server.alive for server in station.servers)
        raise ClusterError(f"{option}: port {port} is taken")

    monkeypatch.setattr(workstation, "require_free_port", refuse)
    with pytest.raises(ClusterError, match="--prefect-port: port 2 is taken"):
        up(ray_port=1, prefect_port=2)


def test_a_server_that_cannot_start_ends_those_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ray_port, prefect_port = free_ports(2)
    begun = []

    def fails_at_ray(name: str, command: list[str], env: dict[str, str]):
        assert name != "deployments"
        code = "raise SystemExit('no room')" if name == "ray" else "import signal; signal.pause()"
        begun.append(spawn(name, [sys.executable, "-c", code], env))
        return begun[-1]

    monkeypatch.setattr(workstation, "spawn", fails_at_ray)
    monkeypatch.setattr(workstation, "wait_for_http", lambda *_: wait_until(lambda: not begun[1].alive, "ray's end"))
    with pytest.raises(ClusterError, match=r"(?s)ray ended while starting; see .*ray\.log.*no room"):
        up(ray_port=ray_port, prefect_port=prefect_port)
    assert [server.name for server in begun if server.alive] == []
    assert current_workstation() is None


def test_what_the_user_has_set_goes_first(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    station = started(*SERVERS)
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:6379")
    workstation.use_workstation(station)
    assert os.environ["RAY_ADDRESS"] == "elsewhere:6379"
    assert os.environ["PREFECT_API_URL"] == "http://127.0.0.1:2/api"
    assert os.environ["PREFECT_API_AUTH_STRING"] == (home / "ray-token").read_text()

    monkeypatch.setenv("PREFECT_API_URL", "http://elsewhere/api")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "theirs")
    workstation.use_workstation(station)
    assert os.environ["PREFECT_API_URL"] == "http://elsewhere/api"
    assert os.environ["PREFECT_API_AUTH_STRING"] == "theirs"


def test_only_its_owner_may_read_the_token_and_the_record_does_not_hold_it(home: Path) -> None:
    started(*SERVERS)
    token = token_file()
    assert token.stat().st_mode & 0o077 == 0
    assert token.read_text() not in (home / "workstation.json").read_text()


@pytest.mark.parametrize("url", ["http://user:hidden@127.0.0.1:{port}/api", "nonsense", "http://[bad/api"])
def test_address_without_a_prefect_server_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ClusterError, match="PREFECT_API_URL: no Prefect server answers at") as caught:
        require_prefect(url.format(port=free_ports(1)[0]))
    assert "hidden" not in str(caught.value)
