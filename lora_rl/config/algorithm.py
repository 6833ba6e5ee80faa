"""Advantages, loss and filters."""

from typing import Annotated, Literal

from pydantic import Field

from lora_rl.config.base import Section


class GrpoAdvantage(Section):
    """Group-relative advantages (arXiv:2402.03300)."""

    type: Literal["grpo"] = "grpo"
    divide_by_std: bool = True
    """False gives Dr. GRPO (arXiv:2503.20783)."""


class RlooAdvantage(Section):
    """Leave-one-out baseline (arXiv:2402.14740)."""

    type: Literal["rloo"] = "rloo"


class ReinforceAdvantage(Section):
    """REINFORCE++ (arXiv:2501.03262): whitened over the batch."""

    type: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    group_baseline: bool = False
    """Subtract the group mean before whitening."""


AdvantageConfig = Annotated[GrpoAdvantage | RlooAdvantage | ReinforceAdvantage, Field(discriminator="type")]


class ClippedLoss(Section):
    """PPO's clipped surrogate on each token."""

    type: Literal["clipped"] = "clipped"
    eps_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below at 1 - eps_low."""

    eps_high: float | None = Field(default=None, gt=0)
    """The ratio is clipped above at 1 + eps_high; null takes `eps_low` (DAPO: 0.28)."""

    dual_clip: float | None = Field(default=None, gt=1)
    """Bound c of the loss for negative advantages (arXiv:1912.09729); null for none."""


class GspoLoss(Section):
    """Sequence-level ratio (arXiv:2507.18071)."""

    type: Literal["gspo"] = "gspo"
    eps_low: float = Field(default=3e-4, gt=0, lt=1)
    """The sequence ratio is clipped below at 1 - eps_low."""

    eps_high: float | None = Field(default=4e-4, gt=0)
    """The sequence ratio is clipped above at 1 + eps_high; null takes `eps_low`."""


class CispoLoss(Section):
    """Clipped importance weight on REINFORCE (arXiv:2506.13585)."""

    type: Literal["cispo"] = "cispo"
    eps_low: float = Field(default=1.0, gt=0, le=1)
    """The weight is clipped below at 1 - eps_low."""

    eps_high: float = Field(default=4.0, gt=0)
    """The weight is clipped above at 1 + eps_high."""


LossConfig = Annotated[ClippedLoss | GspoLoss | CispoLoss, Field(discriminator="type")]


class RatioBand(Section):
    """Ratios exp(logp - logp_rollout) of trainer to engine that are trained on; 1 is always among them."""

    low: float = Field(ge=0, le=1)
    """Lowest ratio; 0 for no lower bound."""

    high: float = Field(ge=1, allow_inf_nan=False)
    """Highest ratio."""


class KlConfig(Section):
    """Penalty on the distance to the base model (the adapter off)."""

    coefficient: float = Field(gt=0)
    """Factor of the penalty."""

    estimator: Literal["k1", "k2", "k3", "low_var_kl"] = "k3"
    """Estimator of the divergence (http://joschu.net/blog/kl-approx.html); `low_var_kl` is k3 clamped to 10."""

    where: Literal["loss", "reward"] = "loss"
    """Added to each token's loss, or taken off the sample's reward as the sum over its tokens."""


class DynamicSampling(Section):
    """DAPO's filter (arXiv:2503.14476): groups with equal rewards are replaced by fresh ones."""

    max_rounds: int = Field(default=4, gt=0)
    """Rounds of sampling after which the run stops with the reason."""

    min_reward_std: float = Field(default=1e-8, ge=0)
    """Groups whose reward deviation is at or below this are dropped."""


class AlgorithmConfig(Section):
    advantage: AdvantageConfig = GrpoAdvantage()
    """Advantage of each sample."""

    loss: LossConfig = ClippedLoss()
    """Policy loss of each token."""

    aggregation: Literal["token_mean", "sample_mean", "constant"] = "token_mean"
    """Mean over all tokens (DAPO), over samples of token means (GRPO), or sum over `max_response_tokens` (Dr. GRPO)."""

    old_logp: Literal["rollout", "recompute"] = "rollout"
    """Log-probabilities in the ratio's denominator: the engine's, or the trainer's own from before the step."""

    tis_clip: float | None = Field(default=2.0, gt=0)
    """Truncated importance sampling: bound of exp(logp_old - logp_rollout); acts with `recompute`; null for none."""

    icepop: RatioBand | None = None
    """IcePop: tokens whose ratio is outside the band have no policy loss (its authors' band: 0.5 to 5); null for none.
    With `recompute` the others are weighted by the ratio, which `tis_clip` cuts: set that to `high` to leave it whole.
    """

    sequence_mask: RatioBand | None = None
    """Samples have no policy loss if the product of their tokens' ratios is outside the band; null for none."""

    geometric_mask: RatioBand | None = None
    """As `sequence_mask`, by the geometric mean of the ratios, for any length (say 0.99 to 1.01); null for none."""

    kl: KlConfig | None = None
    """Penalty on the distance to the base; null for none."""

    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Factor of the entropy bonus."""

    dynamic_sampling: DynamicSampling | None = None
    """Replace groups with equal rewards; null keeps them (they have no gradient)."""

    overlong_filter: bool = False
    """Samples cut off at `max_response_tokens` have no loss (DAPO); they count in their group's advantages."""

    max_mismatch: float | None = Field(default=0.5, gt=0)
    """The run stops when the batch mean of |logp - logp_rollout| exceeds this; null for no limit."""
