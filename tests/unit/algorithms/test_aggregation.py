from typing import Literal

import pytest
import torch

from lora_rl.algorithms.aggregation import loss_weights
from tests.tolerances import FORMULA

Aggregation = Literal["token_mean", "sample_mean", "constant"]
ALL: tuple[Aggregation, ...] = ("token_mean", "sample_mean", "constant")

LOSSES_B = [torch.tensor([1.0, 3.0, 5.0]), torch.tensor([2.0])]


def loss_of(aggregation: Aggregation) -> float:
    lengths_B = torch.tensor([len(loss_T) for loss_T in LOSSES_B])
    weights_B = loss_weights(lengths_B, aggregation=aggregation, max_response_tokens=10)
    return sum((w * loss_T.sum()).item() for w, loss_T in zip(weights_B, LOSSES_B, strict=True))


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("token_mean", 11 / 4), ("sample_mean", 2.5), ("constant", 0.55)]
)
def test_weighted_sum_matches_the_hand_computed_loss(aggregation: Aggregation, expected: float) -> None:
    assert loss_of(aggregation) == pytest.approx(expected, abs=FORMULA)


@pytest.mark.parametrize("aggregation", ALL)
def test_sample_without_tokens_weighs_nothing_and_dilutes_nobody(aggregation: Aggregation) -> None:
    filled_B = loss_weights(torch.tensor([3, 1]), aggregation=aggregation, max_response_tokens=10)
    weights_B = loss_weights(torch.tensor([3, 0, 1]), aggregation=aggregation, max_response_tokens=10)
    assert weights_B.tolist() == [filled_B[0].item(), 0.0, filled_B[1].item()]


@pytest.mark.parametrize("aggregation", ALL)
def test_batch_without_tokens_has_zero_weights(aggregation: Aggregation) -> None:
    assert loss_weights(torch.tensor([0, 0]), aggregation=aggregation, max_response_tokens=10).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("aggregation", ["token_mean", "sample_mean"])
def test_mean_of_equal_losses_is_that_loss(aggregation: Aggregation) -> None:
    lengths_B = torch.tensor([5, 2, 9])
    weights_B = loss_weights(lengths_B, aggregation=aggregation, max_response_tokens=10)
    assert (weights_B * lengths_B).sum().item() == pytest.approx(1.0, abs=FORMULA)
