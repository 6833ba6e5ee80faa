"""Task families of the reasoning-gym package."""

import difflib
import hashlib
import sys
from typing import Any, Protocol

from lora_rl.config.data import ReasoningGymData
from lora_rl.errors import ConfigError

HASH_DEPENDENT = ("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder")
"""Families of reasoning-gym 0.1.25 whose tasks follow the order of Python sets, which differs between processes."""


class Tasks(Protocol):
    """Entries by number: question, answer, metadata."""

    def __getitem__(self, index: int, /) -> dict[str, Any]: ...


def create_tasks(config: ReasoningGymData, *, seed: int) -> Tasks:
    """The tasks of the family; the n-th is a function of `seed` and n.

    Raises ConfigError for an unknown family, for parameters that it refuses, and for a family that does not repeat.
    """
    import reasoning_gym  # takes more than a second to import; only this source needs it
    from reasoning_gym.factory import DATASETS

    if config.task not in DATASETS:
        near = difflib.get_close_matches(config.task, DATASETS, n=3) or sorted(DATASETS)
        raise ConfigError(f"data.task: {config.task!r} is unknown to reasoning-gym; it has {', '.join(near)}")
    if config.task in HASH_DEPENDENT and sys.flags.hash_randomization:
        raise ConfigError(
            f"data.task: {config.task!r} differs from process to process, so a resumed run would see other prompts; "
            "start the cluster and the run with PYTHONHASHSEED=0 or choose another task"
        )
    if reserved := sorted({"seed", "size"} & config.params.keys()):
        raise ConfigError(f"data.params: {', '.join(reserved)} follow from the run's seed and data.size; remove them")
    try:
        return reasoning_gym.create_dataset(
            config.task, size=config.size, seed=_family_seed(config.task, seed), **config.params
        )
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"data.params: {config.params} do not suit {config.task} ({error}); mend them") from error


def _family_seed(task: str, seed: int) -> int:
    # The package seeds task n with seed + n: runs with neighbouring seeds would share nearly all their tasks.
    return int.from_bytes(hashlib.sha256(f"{task}/{seed}".encode()).digest()[:4])
