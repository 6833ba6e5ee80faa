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
    token = clipped_surrogate(
        log_ratio(logp_T, logp_old_T.detach()).exp(), advantage_T, eps_low=eps_low, eps_high=eps_high
    )
    if dual_clip is None:
        return token
    beyond_T = (advantage_T < 0) & (token.ratio_T > dual_clip)
    return TokenLoss(
        loss_T=torch.where(beyond_T, -dual_clip * advantage_T, token.loss_T),
        clipped_T=token.clipped_T | beyond_T,
        ratio_T=token.ratio_T,
    )


def clipped_surrogate(ratio_T: Tensor, advantage_T: Tensor, *, eps_low: float, eps_high: float) -> TokenLoss:
    """-min(r A, clip(r, 1 - eps_low, 1 + eps_high) A) for each token [T], of any ratio r."""
    loss_T = -torch.minimum(ratio_T * advantage_T, ratio_T.clamp(1 - eps_low, 1 + eps_high) * advantage_T)
    too_high_T = (advantage_T > 0) & (ratio_T > 1 + eps_high)
    too_low_T = (advantage_T < 0) & (ratio_T < 1 - eps_low)
    return TokenLoss(loss_T=loss_T, clipped_T=too_high_T | too_low_T, ratio_T=ratio_T.detach())
