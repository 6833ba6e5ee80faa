import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.exceptions import RayTaskError, TaskCancelledError

from lora_rl.config import RewardConfig, RewardTerm
from lora_rl.rewards import GraderPool
from tests.builders import make_sample
from tests.processes import running, wait_until

pytestmark = pytest.mark.integration


@ray.remote
class Host:
    """An asynchronous actor with a grader pool, as the rollout actor has one."""

    def __init__(self) -> None:
        terms = (RewardTerm(name="tests.unit.rewards.graders:by_text"),)
        self._pool = GraderPool(RewardConfig(terms=terms, deadline_s=5.0))

    async def grade(self, texts: list[str]) -> list[float | None]:
        return [s.reward for s in await self._pool.grade([make_sample(response_text=text) for text in texts])]

    async def pids(self) -> list[int]:
        return self._pool.pids


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of this module's own."""
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}}
    ray.init(
        address="local", num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, runtime_env=environment
    )
    yield
    ray.shutdown()


@pytest.fixture
def host(cluster: None) -> Any:
    return Host.options(max_concurrency=10, num_cpus=0).remote()


def test_pool_in_an_actor_survives_bad_graders(host: Any) -> None:
    assert ray.get(host.grade.remote(["fine", "hang", "exit", "raise", "fine"])) == [1.0, 0.0, 0.0, 0.0, 1.0]


def test_cancelled_call_frees_the_workers(host: Any) -> None:
    assert ray.get(host.grade.remote(["fine"])) == [1.0]
    call = host.grade.remote(["hang"] * 8)
    ready, _ = ray.wait([call], timeout=0.3)
    assert not ready
    ray.cancel(call)
    with pytest.raises((RayTaskError, TaskCancelledError)):
        ray.get(call)
    assert ray.get(host.grade.remote(["fine", "fine"])) == [1.0, 1.0]


def test_killed_actor_leaves_no_workers(host: Any) -> None:
    assert ray.get(host.grade.remote(["fine"])) == [1.0]
    pids = ray.get(host.pids.remote())
    host.grade.remote(["hang"])
    ray.kill(host)
    wait_until(lambda: not any(map(running, pids)), f"end of the workers {pids}")
