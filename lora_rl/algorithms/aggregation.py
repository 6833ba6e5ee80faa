"""From token losses to one loss: the weight of a sample's tokens."""

from typing import Literal

from torch import Tensor


def loss_weights(
    lengths_B: Tensor, *, aggregation: Literal["token_mean", "sample_mean", "constant"], max_response_tokens: int
) -> Tensor:
    """Weights [B] such that the loss is the sum over samples b of weight_b times the sum of b's token losses.

    `lengths_B` counts the trained tokens of every sample of the optimizer step, over all ranks and micro-batches:
    however the step is split, its parts add up to the whole. N samples have tokens; those without weigh 0.
    token_mean: 1 / all tokens (DAPO, arXiv:2503.14476, section 3.3). sample_mean: 1 / (N length) (GRPO).
    constant: 1 / (N max_response_tokens) (Dr. GRPO, arXiv:2503.20783).
    """
    filled_B = lengths_B > 0
    num_filled = filled_B.sum().clamp(min=1)
    match aggregation:
        case "token_mean":
            return filled_B / lengths_B.sum().clamp(min=1)
        case "sample_mean":
            return filled_B / (num_filled * lengths_B.clamp(min=1))
        case "constant":
            return filled_B / (num_filled * max_response_tokens)
