"""What the token losses return."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TokenLoss:
    """Loss of each response token of a packed batch, before any weight or sum."""

    loss_T: Tensor
    """Carries the gradient."""
    clipped_T: Tensor
    """Bool: the clip acted on the token's loss."""
    ratio_T: Tensor
    """Importance ratio before the clip, detached."""
