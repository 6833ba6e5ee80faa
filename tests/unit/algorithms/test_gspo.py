import math

import pytest
import torch

from lora_rl.algorithms.aggregation import loss_weights
from lora_rl.algorithms.clipped import clipped_loss
from lora_rl.algorithms.gspo import gspo_loss
from tests.tolerances import FORMULA

# Sample 0 has log-ratios 0.1, 0.3 (mean 0.2), sample 1 has -0.6, 0.0, 0.3 (mean -0.1); their tokens are interleaved.
LOGP_OLD_T = torch.tensor([-1.0, -2.0, -0.5, -0.3, -1.1], dtype=torch.float64)
LOGP_T = LOGP_OLD_T + torch.tensor([0.1, -0.6, 0.3, 0.0, 0.3], dtype=torch.float64)
SAMPLE_T = torch.tensor([0, 1, 0, 1, 1])


def test_ratio_is_the_geometric_mean_over_the_sample() -> None:
    result = gspo_loss(LOGP_T, LOGP_OLD_T, torch.ones(5, dtype=torch.float64), SAMPLE_T, eps_low=0.5, eps_high=0.5)
    first, second = math.exp(0.2), math.exp(-0.1)
    assert result.ratio_T.tolist() == pytest.approx([first, second, first, second, second], abs=FORMULA)
    assert result.loss_T.tolist() == pytest.approx([-first, -second, -first, -second, -second], abs=FORMULA)
    assert not result.clipped_T.any()


def test_a_sample_is_clipped_whole() -> None:
    advantage_T = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    logp_T = LOGP_T.clone().requires_grad_()
    result = gspo_loss(logp_T, LOGP_OLD_T, advantage_T, SAMPLE_T, eps_low=0.2, eps_high=0.1)
    assert result.clipped_T.tolist() == [True, False, True, False, False]
    result.loss_T.sum().backward()
    assert logp_T.grad is not None
    assert torch.equal(logp_T.grad == 0, result.clipped_T)


def test_sample_mean_of_the_token_losses_has_the_gradient_of_the_paper() -> None:
    logp_T = LOGP_T.clone().requires_grad_()
    advantage_T = torch.tensor([2.0, -1.0, 2.0, -1.0, -1.0], dtype=torch.float64)
    result = gspo_loss(logp_T, LOGP_OLD_T, advantage_T, SAMPLE_T, eps_low=0.5, eps_high=0.5)
    weights_B = loss_weights(torch.tensor([2, 3]), aggregation="sample_mean", max_response_tokens=8)
    (weights_B[SAMPLE_T] * result.loss_T).sum().backward()
    # Equation 10: -s A / length for each token, mean over 2 samples.
    first, second = -math.exp(0.2) * 2.0 / 2 / 2, math.exp(-0.1) / 3 / 2
    assert logp_T.grad is not None
    assert logp_T.grad.tolist() == pytest.approx([first, second, first, second, second], abs=FORMULA)


def test_gradient_matches_finite_differences() -> None:
    logp_T = LOGP_T.clone().requires_grad_()
    advantage_T = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda logp_T: gspo_loss(logp_T, LOGP_OLD_T, advantage_T, SAMPLE_T, eps_low=0.2, eps_high=0.3).loss_T,
        (logp_T,),
    )


def test_samples_of_one_token_equal_the_clipped_loss() -> None:
    advantage_T = torch.tensor([1.0, -1.0, 0.5, 2.0, -2.0], dtype=torch.float64)
    sequences = gspo_loss(LOGP_T, LOGP_OLD_T, advantage_T, torch.arange(5), eps_low=0.2, eps_high=0.28)
    tokens = clipped_loss(LOGP_T, LOGP_OLD_T, advantage_T, eps_low=0.2, eps_high=0.28)
    assert torch.equal(sequences.loss_T, tokens.loss_T)
    assert torch.equal(sequences.clipped_T, tokens.clipped_T)


def test_samples_do_not_touch_each_other_and_may_be_missing_from_the_call() -> None:
    ones_T = torch.ones(5, dtype=torch.float64)
    together = gspo_loss(LOGP_T, LOGP_OLD_T, ones_T, SAMPLE_T, eps_low=0.2, eps_high=0.2)
    second_T = SAMPLE_T == 1
    logp_T = LOGP_T[second_T].clone().requires_grad_()
    alone = gspo_loss(logp_T, LOGP_OLD_T[second_T], ones_T[second_T], SAMPLE_T[second_T], eps_low=0.2, eps_high=0.2)
    assert torch.equal(alone.loss_T, together.loss_T[second_T])
    alone.loss_T.sum().backward()
    assert logp_T.grad is not None
    assert logp_T.grad.isfinite().all()


def test_gradient_flows_through_logp_alone_and_the_ratio_is_detached() -> None:
    logp_T, logp_old_T = LOGP_T.clone().requires_grad_(), LOGP_OLD_T.clone().requires_grad_()
    result = gspo_loss(logp_T, logp_old_T, torch.ones(5, dtype=torch.float64), SAMPLE_T, eps_low=0.5, eps_high=0.5)
    result.loss_T.sum().backward()
    assert logp_old_T.grad is None
    assert not result.ratio_T.requires_grad


def test_nan_reaches_the_loss_of_its_own_sample_alone() -> None:
    logp_T = LOGP_T.clone()
    logp_T[0] = math.nan
    result = gspo_loss(logp_T, LOGP_OLD_T, torch.ones(5, dtype=torch.float64), SAMPLE_T, eps_low=0.2, eps_high=0.2)
    assert result.loss_T.isnan().tolist() == [True, False, True, False, False]
