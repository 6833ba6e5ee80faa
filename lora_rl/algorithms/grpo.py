"""Group-relative advantages: GRPO (arXiv:2402.03300, section 4.1.2); without the division, Dr. GRPO
(arXiv:2503.20783, section 3.2)."""

from torch import Tensor

from lora_rl.algorithms.whitening import centre, whiten


def grpo_advantages(rewards_G: Tensor, *, divide_by_std: bool = True, eps: float = 1e-6) -> Tensor:
    """Advantages [G] of one prompt's samples: reward minus mean, over the sample deviation (G - 1) plus `eps`.

    Equal rewards give zeros, and so does the one sample left of a group (G = 1): it has nothing to be compared with.
    """
    return whiten(rewards_G, eps=eps) if divide_by_std else centre(rewards_G)
