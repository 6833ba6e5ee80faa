"""Pools of grader processes, kept from call to call."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lora_rl.config import RewardConfig
from lora_rl.rewards import GraderPool


class GraderPools:
    """A pool for the reward config in use; pools of other configs end as soon as nobody grades with them."""

    def __init__(self) -> None:
        self._pools: dict[str, GraderPool] = {}
        self._users: Counter[str] = Counter()
        self._generation = 0

    @asynccontextmanager
    async def pool(self, config: RewardConfig) -> AsyncIterator[GraderPool]:
        """The pool of `config`, started where there is none."""
        key = f"{self._generation}/{config.model_dump_json()}"
        self._users[key] += 1
        try:
            self._close_unused()
            if key not in self._pools:
                self._pools[key] = GraderPool(config)
            yield self._pools[key]
        finally:
            self._users[key] -= 1

    def renew(self) -> None:
        """Whoever grades from here on gets processes that import their graders anew."""
        self._generation += 1

    def close(self) -> None:
        """Ends all processes; nobody may be grading."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _close_unused(self) -> None:
        for key in [key for key in self._pools if not self._users[key]]:
            self._pools.pop(key).close()
