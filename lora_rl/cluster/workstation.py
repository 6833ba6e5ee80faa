"""Everything on one machine: a Prefect server, a Ray head and the served deployments, all on loopback."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from lora_rl.cluster.processes import Server, end, held_port, last_lines, require_free_port, spawn, wait_for_http
from lora_rl.cluster.token import token_environment, token_file
from lora_rl.errors import ClusterError, DeadlineExceeded
from lora_rl.home import home
from lora_rl.store.handover import remove_orphans

SERVERS = ("prefect", "ray", "deployments")
START_DEADLINE_S = 120.0
ANSWER_DEADLINE_S = 30.0
RAY_PROGRAM = (sys.executable, "-m", "ray.scripts.scripts")
"""The command `ray`, also where its packages lie in a folder of PYTHONPATH and no script was installed."""
OBJECT_STORE_BYTES = 256 * 2**20
"""Only small records pass through Ray; tensors and texts go through the store."""
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True, kw_only=True)
class Workstation:
    """What `lora-rl up` started, and where it answers."""

    ray_address: str
    prefect_api_url: str
    servers: list[Server]

    @property
    def alive(self) -> bool:
        return [server.name for server in self.servers if server.alive] == list(SERVERS)


def _state_file() -> Path:
    return home() / "workstation.json"


def _recorded() -> Workstation | None:
    try:
        values = json.loads(_state_file().read_text())
    except FileNotFoundError:
        return None
    servers = [Server(**server) for server in values.pop("servers")]
    return Workstation(**values, servers=servers)


def _record(workstation: Workstation) -> None:
    beside = _state_file().with_suffix(".new")
    beside.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(json.dumps(asdict(workstation), indent=2))
    beside.replace(_state_file())


def current_workstation() -> Workstation | None:
    """The workstation that is up, or None.

    Raises ClusterError where only some of its servers run: what else a run started would stand beside them.
    """
    workstation = _recorded()
    if workstation is None or workstation.alive:
        return workstation
    running = [server.name for server in workstation.servers if server.alive]
    if not running:
        return None
    ended = [server for server in workstation.servers if not server.alive]
    what = (
        f"{ended[0].name} has ended, {', '.join(running)} still runs; see {ended[0].log}"
        if ended
        else "it is still starting, or its start was interrupted"
    )
    raise ClusterError(f"the workstation of `lora-rl up`: {what}; `lora-rl down` and then `lora-rl up` mend it")


def up(*, ray_port: int, prefect_port: int) -> Workstation:
    """Starts all servers, and ends first what a workstation left of which one died. When one fails, all are ended.

    Raises ClusterError when a port is taken, a server ends while starting, or a workstation is up.
    """
    standing = _recorded()
    if standing is not None and standing.alive:
        raise ClusterError("up: already up; `lora-rl down` ends it")
    if ray_port == prefect_port:
        raise ClusterError(f"--ray-port: {ray_port} is the --prefect-port too; choose another")
    down()
    require_free_port(prefect_port, "--prefect-port")
    require_free_port(ray_port, "--ray-port")
    api_url = f"http://127.0.0.1:{prefect_port}/api"
    ray_address = f"127.0.0.1:{ray_port}"
    token = token_environment()
    servers: list[Server] = []
    workstation = Workstation(ray_address=ray_address, prefect_api_url=api_url, servers=servers)

    def start(name: str, command: list[str], env: Mapping[str, str]) -> None:
        servers.append(spawn(name, command, env))
        _record(workstation)  # also if we are killed before all are up, `down` finds it

    try:
        start("prefect", _prefect_command(prefect_port), _prefect_env(prefect_port))
        start("ray", _ray_command(ray_port), QUIET | token)
        wait_for_http(servers[0], f"{api_url}/health", START_DEADLINE_S)
        _wait_for_ray(servers[1], ray_address, token)
        env = {**QUIET, **token, **prefect_client(api_url), "RAY_ADDRESS": ray_address}
        start("deployments", [sys.executable, "-m", "flows.serve"], env)
    except BaseException:
        down()
        raise
    return workstation


def down() -> list[str]:
    """Ends what `up` started, and nothing else; frees the memory that dead trainers left, also those of runs without
    a workstation. Returns the names of the servers ended.
    """
    workstation = _recorded()
    ended: list[str] = []
    if workstation is not None:
        ended = [server.name for server in reversed(workstation.servers) if end(server)]
        _state_file().unlink()
    with suppress(OSError):  # a folder of another user is not ours to free
        remove_orphans()
    return ended


@contextmanager
def private_prefect_server() -> Iterator[dict[str, str]]:
    """Variables that make a process a client of a Prefect server of our own, for a run without one.

    It ends with this process, however that ends.
    """
    with held_port() as held:
        port = held.getsockname()[1]
        server = spawn("prefect-private", _prefect_command(port), _prefect_env(port), dies_with_us=True)
        try:
            url = f"http://127.0.0.1:{port}/api"
            wait_for_http(server, f"{url}/health", START_DEADLINE_S)
            yield prefect_client(url)
        finally:
            end(server)


def _prefect_command(port: int) -> list[str]:
    application = "prefect.server.api.server:create_app"
    options = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "warning", "--lifespan", "on"]
    return [sys.executable, "-m", "uvicorn", "--factory", application, *options]


def _prefect_env(port: int) -> dict[str, str]:
    # the UI asks the port that the server is told of, not the one it listens on
    place = {"PREFECT_SERVER_API_HOST": "127.0.0.1", "PREFECT_SERVER_API_PORT": str(port)}
    return {**QUIET, **place, "PREFECT_SERVER_API_AUTH_STRING": token_file().read_text()}


def prefect_client(api_url: str) -> dict[str, str]:
    """Variables that make a process a client of our Prefect server at `api_url`."""
    return {"PREFECT_API_URL": api_url, "PREFECT_API_AUTH_STRING": token_file().read_text()}


def _ray_command(port: int) -> list[str]:
    address = ["--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}"]
    return [
        *RAY_PROGRAM,
        "start",
        *address,
        "--include-dashboard=false",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
    ]


def _wait_for_ray(server: Server, address: str, token: Mapping[str, str]) -> None:
    give_up = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < give_up:
        if not server.alive:
            raise ClusterError(f"ray ended while starting; see {server.log}\n{last_lines(server)}")
        check = subprocess.run(
            [*RAY_PROGRAM, "health-check", "--address", address],
            capture_output=True,
            check=False,
            env={**os.environ, **token},
        )
        if check.returncode == 0:
            return
    raise DeadlineExceeded(f"ray: {address} did not answer within {START_DEADLINE_S:g} s; see {server.log}")


def require_prefect(api_url: str) -> None:
    """Raises ClusterError when nothing answers at `api_url`."""
    try:
        httpx.get(f"{api_url}/health", timeout=ANSWER_DEADLINE_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ClusterError(
            f"PREFECT_API_URL: no Prefect server answers at {api_url.rpartition('@')[2]} "
            f"({type(error).__name__}); start one with `lora-rl up`, or unset it"
        ) from error


def use_workstation(workstation: Workstation) -> None:
    """Makes this process a client of the workstation; what the user has set goes first."""
    if os.environ.setdefault("RAY_ADDRESS", workstation.ray_address) == workstation.ray_address:
        os.environ.update(token_environment())
    api_url = workstation.prefect_api_url
    if os.environ.setdefault("PREFECT_API_URL", api_url) == api_url:
        os.environ.update(prefect_client(api_url))
