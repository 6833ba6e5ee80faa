"""PPO's clipped surrogate (arXiv:1707.06347, equation 7), with DAPO's upper bound (arXiv:2503.14476, section 3.1)
and the dual clip (arXiv:1912.09729)."""

import torch
from torch import Tensor

from lora_rl.algorithms.ratio import log_ratio
from lora_rl.algorithms.types import TokenLoss


def clipped_loss(
    logp_T: Tensor,
    logp_old_T: Tensor,
    advantage_T: Tensor,
    *,
    eps_low: float,
    eps_high: float,
    dual_clip: float | None = None,
) -> TokenLoss:
    """-min(r A, clip(r, 1 - eps_low, 1 + eps_high) A) for each token [T], with r = exp(logp - logp_old).

    `dual_clip` c > 1 bounds the loss of a negative advantage by -c A. Gradient flows through `logp_T` alone, and not
    where the clip acts.
    """
    ratio_T = log_ratio(logp_T, logp_old_T.detach()).exp()
    loss_T = -torch.minimum(ratio_T * advantage_T, ratio_T.clamp(1 - eps_low, 1 + eps_high) * advantage_T)
    too_high_T = (advantage_T > 0) & (ratio_T > 1 + eps_high)
    too_low_T = (advantage_T < 0) & (ratio_T < 1 - eps_low)
    clipped_T = too_high_T | too_low_T
    if dual_clip is not None:
        beyond_T = (advantage_T < 0) & (ratio_T > dual_clip)
        loss_T = torch.where(beyond_T, -dual_clip * advantage_T, loss_T)
        clipped_T = clipped_T | beyond_T
    return TokenLoss(loss_T=loss_T, clipped_T=clipped_T, ratio_T=ratio_T.detach())
