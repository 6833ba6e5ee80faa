"""Gradients in float16: its smallest numbers are larger than many a gradient, so the loss is scaled up and back.

B samples of one adapter's batch.
"""

import math

import torch
from torch import Tensor

LARGEST = 2.0**-3
"""What the largest d loss / d log-probability of a token is scaled to: 2**16 times below float16's end, since sums over
all tokens stand in float16 too, and 2**21 times above its smallest number."""


def loss_scale(weights_B: Tensor, advantages_B: Tensor, dtype: torch.dtype) -> float:
    """Factor on an adapter's loss, a power of two; 1 for a type with the exponents of float32.

    It follows from the adapter's own batch: neighbours in a micro-batch do not change it.
    """
    if dtype != torch.float16 or not len(weights_B):
        return 1.0
    largest = (weights_B * advantages_B.abs().clamp(min=1)).max().item()
    if not 0 < largest < math.inf:
        return 1.0
    return 2.0 ** math.floor(math.log2(LARGEST / largest))
