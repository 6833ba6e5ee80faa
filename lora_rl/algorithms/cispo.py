"""CISPO (arXiv:2506.13585, section 3.1): the importance weight is clipped, not the token's gradient."""

from torch import Tensor

from lora_rl.algorithms.ratio import log_ratio
from lora_rl.algorithms.types import TokenLoss


def cispo_loss(
    logp_T: Tensor, logp_old_T: Tensor, advantage_T: Tensor, *, eps_low: float, eps_high: float
) -> TokenLoss:
    """-sg(clip(r, 1 - eps_low, 1 + eps_high)) A logp for each token [T], with r = exp(logp - logp_old).

    sg stops the gradient. Every token keeps a gradient, also those whose weight is clipped; eps_low = 1 sets no
    lower bound.
    """
    ratio_T = log_ratio(logp_T.detach(), logp_old_T.detach()).exp()
    weight_T = ratio_T.clamp(1 - eps_low, 1 + eps_high)
    return TokenLoss(loss_T=-weight_T * advantage_T * logp_T, clipped_T=weight_T != ratio_T, ratio_T=ratio_T)
