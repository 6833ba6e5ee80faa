"""Rewards: graders and the processes that run them. Free of torch.

A grader is a plain function `(sample: Sample, **params) -> float`, sync or async.
text, numeric, mathematics, gym: the built-in graders; labels holds what they share.
resolve: from a grader's name to its function and checked params; check: every fault of a reward config.
pool, process, worker: worker processes with a deadline for each sample, from the caller down to the process itself.
metrics: what a graded batch looks like.
"""

from lora_rl.rewards.check import check_rewards
from lora_rl.rewards.metrics import reward_metrics
from lora_rl.rewards.pool import GraderPool
from lora_rl.rewards.resolve import resolve_grader

__all__ = ["GraderPool", "check_rewards", "resolve_grader", "reward_metrics"]
