"""The rules of a reward config that need the graders themselves."""

from typing import TYPE_CHECKING

from lora_rl.errors import ConfigError
from lora_rl.rewards.resolve import checked_params, resolve_grader

if TYPE_CHECKING:  # Worker processes import this package, and building the config classes is half of their start.
    from lora_rl.config import RewardConfig


def check_rewards(config: "RewardConfig") -> list[str]:
    """Every fault of the config: unknown graders, modules that cannot be imported, params that do not fit."""
    faults = []
    for index, term in enumerate(config.terms):
        try:
            checked_params(resolve_grader(term.name), term.params)
        except ConfigError as error:
            faults.append(f"reward.terms.{index}: {error}")
    return faults
