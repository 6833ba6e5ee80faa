import math

import pytest
import torch

from lora_rl.algorithms.cispo import cispo_loss
from tests.tolerances import FORMULA

LOGP_OLD_T = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)
RATIO_T = torch.tensor([0.1, 1.5, 8.0], dtype=torch.float64)
ADVANTAGE_T = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def test_gradient_is_the_clipped_weight_times_the_advantage() -> None:
    logp_T = (LOGP_OLD_T + RATIO_T.log()).requires_grad_()
    result = cispo_loss(logp_T, LOGP_OLD_T, ADVANTAGE_T, eps_low=0.5, eps_high=4.0)
    result.loss_T.sum().backward()
    assert logp_T.grad is not None
    assert logp_T.grad.tolist() == pytest.approx([-0.5 * 1.0, 1.5 * 2.0, -5.0 * 0.5], abs=FORMULA)
    assert result.clipped_T.tolist() == [True, False, True]


def test_loss_is_weighted_reinforce() -> None:
    logp_T = LOGP_OLD_T + RATIO_T.log()
    loss_T = cispo_loss(logp_T, LOGP_OLD_T, ADVANTAGE_T, eps_low=0.5, eps_high=4.0).loss_T
    expected = [-0.5 * logp_T[0].item(), 3.0 * logp_T[1].item(), -2.5 * logp_T[2].item()]
    assert loss_T.tolist() == pytest.approx(expected, abs=FORMULA)


def test_eps_low_of_one_sets_no_lower_bound() -> None:
    logp_T = torch.tensor([-30.0], dtype=torch.float64)
    result = cispo_loss(logp_T, torch.tensor([-15.0], dtype=torch.float64), torch.ones(1), eps_low=1.0, eps_high=4.0)
    assert not result.clipped_T.any()
    assert result.ratio_T.item() == pytest.approx(math.exp(-15.0))


def test_neither_the_weight_nor_the_old_policy_has_a_gradient() -> None:
    logp_T = (LOGP_OLD_T + RATIO_T.log()).requires_grad_()
    logp_old_T = LOGP_OLD_T.clone().requires_grad_()
    result = cispo_loss(logp_T, logp_old_T, ADVANTAGE_T, eps_low=0.5, eps_high=4.0)
    result.loss_T.sum().backward()
    assert logp_old_T.grad is None
    assert not result.ratio_T.requires_grad


def test_nan_log_prob_reaches_the_loss() -> None:
    nan_T = torch.tensor([math.nan])
    assert cispo_loss(nan_T, torch.zeros(1), torch.ones(1), eps_low=1.0, eps_high=4.0).loss_T.isnan().all()
