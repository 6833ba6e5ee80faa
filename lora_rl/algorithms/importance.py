"""Weights and masks against the gap between the engine's policy and the trainer's: TIS
(https://fengyao.notion.site/off-policy-rl), IcePop (https://ringtech.notion.site/icepop), and masks of whole answers by
the product of their ratios or its geometric mean (https://richardli.xyz/rl-collapse)."""

from torch import Tensor

from lora_rl.algorithms.ratio import log_ratio, sample_sums


def tis_weights(logp_old_T: Tensor, logp_rollout_T: Tensor, *, clip: float) -> Tensor:
    """min(exp(logp_old - logp_rollout), clip) for each token [T], without gradient: the factor of its loss."""
    return log_ratio(logp_old_T.detach(), logp_rollout_T.detach()).exp().clamp(max=clip)


def icepop_mask(logp_T: Tensor, logp_rollout_T: Tensor, *, low: float, high: float) -> Tensor:
    """Tokens [T], bool, to leave out: those whose ratio exp(logp - logp_rollout) is outside [low, high]."""
    return _outside(log_ratio(logp_T.detach(), logp_rollout_T.detach()), low, high)


def sequence_mask(logp_T: Tensor, logp_rollout_T: Tensor, sample_T: Tensor, *, low: float, high: float) -> Tensor:
    """Tokens [T], bool, to leave out: all of a sample, if the product of its tokens' ratios is outside [low, high].

    `sample_T` (int64, from 0) names the sample of each token; all tokens of a sample must be in the call.
    """
    sums_B = sample_sums(log_ratio(logp_T.detach(), logp_rollout_T.detach()), sample_T)
    return _outside(sums_B, low, high)[sample_T]


def geometric_mask(logp_T: Tensor, logp_rollout_T: Tensor, sample_T: Tensor, *, low: float, high: float) -> Tensor:
    """As `sequence_mask`, by the geometric mean of the ratios: the same band for answers of any length."""
    sums_B = sample_sums(log_ratio(logp_T.detach(), logp_rollout_T.detach()), sample_T)
    return _outside(sums_B / sample_T.bincount(), low, high)[sample_T]


def _outside(log_ratio_N: Tensor, low: float, high: float) -> Tensor:
    """The ends belong to the band, and NaN is never outside: the caller refuses the step."""
    ratio_N = log_ratio_N.exp()
    return (ratio_N < low) | (ratio_N > high)
