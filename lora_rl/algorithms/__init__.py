"""The mathematics of the update: pure functions on tensors, without config, rank, device or logger.

One small module each, imported by its own name (`from lora_rl.algorithms.grpo import grpo_advantages`), so that the
parts without torch stay without it.
Advantages: grpo, rloo, reinforce; whitening holds what they share.
Token losses: clipped, gspo, cispo; ratio holds what they share, types their result.
Other terms: kl, importance. Weights of the sum: aggregation. Groups to leave out (no torch): filters.

Axes: G samples of a prompt, B samples of a batch, T response tokens packed over samples, N any.
A NaN log-probability gives a NaN loss and is never masked here: the caller refuses the step. Tokens to leave out are
left out before the call, of T and of the lengths that `aggregation` divides by.
"""

__all__: list[str] = []
