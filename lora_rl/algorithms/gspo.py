"""Group sequence policy optimization (arXiv:2507.18071, equations 5 and 7): one ratio for a whole answer."""

from torch import Tensor

from lora_rl.algorithms.clipped import clipped_surrogate
from lora_rl.algorithms.ratio import log_ratio, sample_sums
from lora_rl.algorithms.types import TokenLoss


def gspo_loss(
    logp_T: Tensor,
    logp_old_T: Tensor,
    advantage_T: Tensor,
    sample_T: Tensor,
    *,
    eps_low: float,
    eps_high: float,
) -> TokenLoss:
    """-min(s A, clip(s, 1 - eps_low, 1 + eps_high) A) for each token [T].

    s = exp(mean of logp - logp_old over the token's sample).
    `sample_T` (int64, from 0) names the sample of each token; all tokens of a sample must be in the call. They share
    its loss, so that their mean (aggregation `sample_mean`) is the paper's objective. Gradient flows through `logp_T`
    alone.
    """
    log_ratio_T = log_ratio(logp_T, logp_old_T.detach())
    ratio_T = (sample_sums(log_ratio_T, sample_T) / sample_T.bincount()).exp()[sample_T]
    return clipped_surrogate(ratio_T, advantage_T, eps_low=eps_low, eps_high=eps_high)
