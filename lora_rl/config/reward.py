"""How answers are scored."""

from typing import Any, Literal

from pydantic import Field

from lora_rl.config.base import Section


class RewardTerm(Section):
    """One grader and its weight in the sum."""

    name: str = Field(min_length=1)
    """A built-in grader (`exact`, `format`, `number`, `gsm8k`, `math`, `deepscaler`, `dapo`, `f1`, `gpqa`, `overlong`,
    `reasoning_gym`) or `module:function`; after `boxed_` it sees what stands in the last `\\boxed{}` alone."""

    weight: float = 1.0
    """Factor of this grader's score in the reward."""

    params: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the grader. They are recorded: a grader that needs a key reads it from its environment."""


class RewardConfig(Section):
    terms: tuple[RewardTerm, ...] = Field(default=(RewardTerm(name="exact"),), min_length=1)
    """The reward is the weighted sum of these."""

    deadline_s: float = Field(default=10.0, gt=0)
    """Seconds one sample's grading may take before its worker process is replaced."""

    workers: int = Field(default=2, gt=0)
    """Grader processes."""

    on_error: Literal["zero", "drop"] = "zero"
    """A grader that raises or hangs: the sample's reward is 0, or it is left out of training. Both are counted."""
