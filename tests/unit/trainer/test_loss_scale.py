import math

import pytest
import torch

from lora_rl.trainer.loss_scale import LARGEST, loss_scale

FLOAT16_END = torch.finfo(torch.float16).max


@pytest.mark.parametrize("weight", [1.0, 3e-3, 1.1e-7])
@pytest.mark.parametrize("advantage", [0.0, 0.3, 40.0])
def test_the_largest_token_gradient_comes_close_to_the_limit_by_a_power_of_two(weight, advantage):
    weights_B, advantages_B = torch.tensor([weight, weight / 5]), torch.tensor([-advantage, advantage / 7])
    scale = loss_scale(weights_B, advantages_B, torch.float16)
    assert math.log2(scale).is_integer()
    assert LARGEST / 2 < scale * weight * max(advantage, 1.0) <= LARGEST < FLOAT16_END / 2**16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_types_are_not_scaled(dtype):
    assert loss_scale(torch.tensor([1e-7]), torch.tensor([1.0]), dtype) == 1.0


@pytest.mark.parametrize("weights", [[], [0.0], [math.inf], [math.nan]])
def test_a_batch_that_gives_no_scale_is_not_scaled(weights):
    assert loss_scale(torch.tensor(weights), torch.ones(len(weights)), torch.float16) == 1.0
