"""How long a call may take before it is cancelled."""

from pydantic import Field

from lora_rl.config.base import Section


class DeadlineConfig(Section):
    start_s: float = Field(default=600.0, gt=0)
    """Start of an actor, model loading and compilation included."""

    rollout_s: float = Field(default=1800.0, gt=0)
    """One iteration's rollout."""

    reward_s: float = Field(default=600.0, gt=0)
    """One iteration's grading."""

    train_s: float = Field(default=1800.0, gt=0)
    """One train step."""

    publish_s: float = Field(default=120.0, gt=0)
    """Export or hot load of one adapter."""
