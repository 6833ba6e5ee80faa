"""Grader processes live as long as their config is in use."""

from lora_rl.config import RewardConfig, RewardTerm
from lora_rl.errors import RewardError
from lora_rl.rewards import GraderPool
from lora_rl.rollout.graders import GraderPools

EXACT = RewardConfig(workers=1)
MATH = RewardConfig(terms=(RewardTerm(name="math"),), workers=1)


async def _open(pool: GraderPool) -> bool:
    try:
        return await pool.grade([]) == []
    except RewardError:
        return False


async def test_the_same_config_gets_the_same_processes():
    pools = GraderPools()
    async with pools.pool(EXACT) as first:
        pass
    async with pools.pool(RewardConfig(workers=1)) as second:
        assert second is first
    pools.close()


async def test_another_config_ends_the_processes_that_nobody_uses_and_no_others():
    pools = GraderPools()
    async with pools.pool(EXACT) as used:
        async with pools.pool(MATH) as other:
            assert await _open(used)
            assert await _open(other)
        async with pools.pool(RewardConfig(workers=2)):
            assert await _open(used)
            assert not await _open(other)
    pools.close()
    assert not await _open(used)


async def test_renewed_pools_import_their_graders_anew():
    pools = GraderPools()
    async with pools.pool(EXACT) as stale:
        pools.renew()
        async with pools.pool(EXACT) as fresh:
            assert fresh is not stale
            assert await _open(stale)
    async with pools.pool(EXACT):
        assert not await _open(stale)
    pools.close()
