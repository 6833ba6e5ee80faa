"""One run uses a cluster at a time."""

import asyncio
import contextvars
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lora_rl.cluster import lease as lease_module
from lora_rl.cluster.connect import connect, disconnect
from lora_rl.cluster.lease import lease
from lora_rl.errors import ClusterError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

KILLED_DRIVER = """
import asyncio, os, signal
from lora_rl.cluster.lease import lease
async def hold():
    async with lease("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(hold())
"""


@pytest.fixture(scope="module", autouse=True)
def cluster(cluster_environment: dict[str, str]) -> Iterator[None]:
    connect(cluster_environment["RAY_ADDRESS"])
    yield
    disconnect()


async def test_second_run_is_refused_by_name_and_let_in_after_the_first(monkeypatch):
    monkeypatch.setattr(lease_module, "WAIT_S", 1.0)
    async with lease("first"):
        with pytest.raises(ClusterError, match="run second: the cluster is in use by run first"):
            async with lease("second"):
                pytest.fail("two runs at a time")
    monkeypatch.setattr(lease_module, "WAIT_S", 120.0)
    async with lease("second"):
        pass


async def test_iteration_of_a_run_shares_its_lease_and_gives_back_one_of_its_own(monkeypatch):
    monkeypatch.setattr(lease_module, "WAIT_S", 1.0)
    async with lease("train"):
        async with lease("train"):
            pass
        with pytest.raises(ClusterError, match="run other: the cluster is in use by run train"):
            async with lease("other"):
                pytest.fail("two runs at a time")
    monkeypatch.setattr(lease_module, "WAIT_S", 30.0)
    async with lease("other"):
        pass


async def test_iteration_by_itself_waits_for_the_cluster(monkeypatch, cluster_environment, tmp_path):
    from flows.iteration import iteration

    monkeypatch.setattr(lease_module, "WAIT_S", 1.0)
    async with lease("night"):
        alone = contextvars.Context().run(asyncio.ensure_future, iteration.fn("day", 0, str(tmp_path)))
        with pytest.raises(ClusterError, match="run day: the cluster is in use by run night"):
            await alone


async def test_killed_driver_gives_the_cluster_back(cluster_environment, monkeypatch):
    monkeypatch.setattr(lease_module, "WAIT_S", 120.0)
    done = subprocess.run([sys.executable, "-c", KILLED_DRIVER], env=cluster_environment, timeout=200, check=False)
    assert done.returncode == -signal.SIGKILL
    async with lease("next"):
        pass
