"""The mathematics of the update: pure functions on tensors, one small module each, without config, rank, device or logger.

Import the module that you need: `from lora_rl.algorithms.grpo import grpo_advantages`.
Advantages     grpo, rloo, reinforce (whitening holds what they share)
Token losses   clipped, gspo, cispo (ratio holds what they share; types has their result)
Other terms    kl, importance
Weights        aggregation
Groups         filters (free of torch)

Axes: G samples of one prompt, B samples of a batch, T response tokens packed over samples.
A NaN log-probability gives a NaN loss and is never masked: the trainer refuses the step. Tokens to leave out are left out before the call,
of T and of the lengths that `aggregation` divides by.
"""

__all__ = [
    "aggregation",
    "cispo",
    "clipped",
    "filters",
    "grpo",
    "gspo",
    "importance",
    "kl",
    "ratio",
    "reinforce",
    "rloo",
    "types",
    "whitening",
]
