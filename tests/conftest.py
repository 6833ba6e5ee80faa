"""Fixtures for what is started and stopped; once a session where starting is slow."""

import os
import secrets
from collections.abc import Iterator

import pytest

from lora_rl.cluster import workstation
from tests.processes import free_ports
from tests.s3 import BUCKET, S3Process, moto, seaweedfs

os.environ |= {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "RAY_USAGE_STATS_ENABLED": "0"}
# A Ray head asks for a token where the home folder holds one, and drivers that name an address do not send that one.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Process]:
    """A running seaweedfs; `environment` says how to reach it."""
    server = seaweedfs(tmp_path_factory.mktemp("seaweedfs"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def s3_store_uri(s3_server: S3Process) -> Iterator[str]:
    """`store.uri` of a bucket on a real S3 server; the AWS variables are set for the rest of the session."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in s3_server.environment.items():
            patch.setenv(name, value)
        yield f"s3://{BUCKET}/session"


@pytest.fixture(scope="session")
def moto_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Process]:
    """A running moto; `environment` says how to reach it."""
    server = moto(tmp_path_factory.mktemp("moto"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def cluster_environment(s3_store_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Environment of a process that is a client of a Prefect server and a Ray head, both up for the session."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LORA_RL_HOME", "PREFECT_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        ray_port, prefect_port = free_ports(2)
        station = workstation.up(ray_port=ray_port, prefect_port=prefect_port)
        try:
            prefect = workstation.prefect_client(station.prefect_api_url)
            yield {**os.environ, "RAY_ADDRESS": station.ray_address, **prefect}
        finally:
            workstation.down()
