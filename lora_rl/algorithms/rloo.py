"""Leave-one-out advantages: RLOO (arXiv:2402.14740)."""

from torch import Tensor

from lora_rl.algorithms.whitening import centre


def rloo_advantages(rewards_G: Tensor) -> Tensor:
    """Advantages [G] of one prompt's samples: reward minus the mean reward of the other G - 1.

    Equals the centred reward times G / (G - 1). Equal rewards give zeros, and so does the one sample left of a group.
    """
    num_samples = len(rewards_G)
    return centre(rewards_G) * (num_samples / max(num_samples - 1, 1))
