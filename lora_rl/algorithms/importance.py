"""Weights against the gap between the engine's policy and the trainer's: TIS
(https://fengyao.notion.site/off-policy-rl) and IcePop (https://ringtech.notion.site/icepop)."""

from torch import Tensor

from lora_rl.algorithms.ratio import log_ratio


def tis_weights(logp_old_T: Tensor, logp_rollout_T: Tensor, *, clip: float) -> Tensor:
    """min(exp(logp_old - logp_rollout), clip) for each token [T], without gradient: the factor of its loss."""
    return log_ratio(logp_old_T.detach(), logp_rollout_T.detach()).exp().clamp(max=clip)


def icepop_weights(logp_old_T: Tensor, logp_rollout_T: Tensor, *, low: float, high: float) -> Tensor:
    """exp(logp_old - logp_rollout) inside [low, high] and 0 outside, for each token [T], without gradient."""
    ratio_T = log_ratio(logp_old_T.detach(), logp_rollout_T.detach()).exp()
    return ratio_T.masked_fill((ratio_T < low) | (ratio_T > high), 0.0)
