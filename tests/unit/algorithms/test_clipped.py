import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lora_rl.algorithms.clipped import clipped_loss
from tests.tolerances import FORMULA

LOGP_OLD_T = torch.tensor([-0.7, -1.3, -2.1, -0.2, -3.0, -0.9], dtype=torch.float64)
RATIO_T = torch.tensor([0.5, 1.0, 1.25, 1.5, 0.75, 9.0], dtype=torch.float64)


def loss_of(advantage: float, logp_T: Tensor | None = None, **options: Any) -> Any:
    logp_T = LOGP_OLD_T + RATIO_T.log() if logp_T is None else logp_T
    return clipped_loss(logp_T, LOGP_OLD_T, torch.full_like(LOGP_OLD_T, advantage), **options)


def test_positive_advantage_is_bounded_above() -> None:
    result = loss_of(2.0, eps_low=0.2, eps_high=0.28)
    assert result.loss_T.tolist() == pytest.approx([-1.0, -2.0, -2.5, -2.56, -1.5, -2.56], abs=FORMULA)
    assert result.clipped_T.tolist() == [False, False, False, True, False, True]


def test_negative_advantage_is_bounded_below() -> None:
    result = loss_of(-2.0, eps_low=0.2, eps_high=0.28)
    assert result.loss_T.tolist() == pytest.approx([1.6, 2.0, 2.5, 3.0, 1.6, 18.0], abs=FORMULA)
    assert result.clipped_T.tolist() == [True, False, False, False, True, False]


def test_dual_clip_bounds_the_loss_of_a_negative_advantage() -> None:
    result = loss_of(-2.0, eps_low=0.2, eps_high=0.28, dual_clip=3.0)
    assert result.loss_T.tolist() == pytest.approx([1.6, 2.0, 2.5, 3.0, 1.6, 6.0], abs=FORMULA)
    assert result.clipped_T.tolist() == [True, False, False, False, True, True]


def test_dual_clip_leaves_a_positive_advantage_alone() -> None:
    assert torch.equal(
        loss_of(2.0, eps_low=0.2, eps_high=0.28, dual_clip=3.0).loss_T, loss_of(2.0, eps_low=0.2, eps_high=0.28).loss_T
    )


def test_zero_advantage_has_neither_loss_nor_clip() -> None:
    result = loss_of(0.0, eps_low=0.2, eps_high=0.2, dual_clip=3.0)
    assert not result.loss_T.any()
    assert not result.clipped_T.any()


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_gradient_matches_finite_differences(advantage: float) -> None:
    logp_T = (LOGP_OLD_T + RATIO_T.log()).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda logp_T: loss_of(advantage, logp_T, eps_low=0.2, eps_high=0.28, dual_clip=3.0).loss_T, (logp_T,)
    )


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_gradient_is_zero_exactly_where_the_clip_acts(advantage: float) -> None:
    logp_T = (LOGP_OLD_T + RATIO_T.log()).requires_grad_()
    result = loss_of(advantage, logp_T, eps_low=0.2, eps_high=0.28, dual_clip=3.0)
    result.loss_T.sum().backward()
    assert logp_T.grad is not None
    assert torch.equal(logp_T.grad == 0, result.clipped_T)


def test_gradient_flows_through_logp_alone_and_the_ratio_is_detached() -> None:
    logp_T = LOGP_OLD_T.clone().requires_grad_()
    logp_old_T = LOGP_OLD_T.clone().requires_grad_()
    result = clipped_loss(logp_T, logp_old_T, torch.ones_like(LOGP_OLD_T), eps_low=0.2, eps_high=0.2)
    result.loss_T.sum().backward()
    assert logp_old_T.grad is None
    assert not result.ratio_T.requires_grad


def test_on_policy_gradient_is_minus_the_advantage() -> None:
    logp_T = LOGP_OLD_T.clone().requires_grad_()
    advantage_T = torch.tensor([1.0, -1.0, 0.5, 0.0, 2.0, -3.0], dtype=torch.float64)
    clipped_loss(logp_T, LOGP_OLD_T, advantage_T, eps_low=0.2, eps_high=0.2).loss_T.sum().backward()
    assert logp_T.grad is not None
    torch.testing.assert_close(logp_T.grad, -advantage_T, atol=FORMULA, rtol=0.0)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_impossible_old_log_prob_leaves_loss_and_gradient_finite_in_float32(advantage: float) -> None:
    logp_T = torch.tensor([-0.5], requires_grad=True)
    result = clipped_loss(logp_T, torch.tensor([-math.inf]), torch.tensor([advantage]), eps_low=0.2, eps_high=0.2)
    result.loss_T.sum().backward()
    assert result.loss_T.isfinite().all()
    assert logp_T.grad is not None
    assert logp_T.grad.tolist() == [0.0]


@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_nan_log_prob_reaches_the_loss(dual_clip: float | None) -> None:
    result = clipped_loss(
        torch.tensor([math.nan]),
        torch.tensor([-1.0]),
        torch.tensor([1.0]),
        eps_low=0.2,
        eps_high=0.2,
        dual_clip=dual_clip,
    )
    assert result.loss_T.isnan().all()
