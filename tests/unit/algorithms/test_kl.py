import math
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lora_rl.algorithms.kl import kl_penalty
from tests.tolerances import FORMULA

Estimator = Literal["k1", "k2", "k3", "low_var_kl"]
LOGP = st.floats(-30, 0)


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("k1", [0.5, -0.5, -3.0]),
        ("k2", [0.125, 0.125, 4.5]),
        ("k3", [math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5, math.exp(3) - 4]),
        ("low_var_kl", [math.exp(-0.5) - 0.5, math.exp(0.5) - 1.5, 10.0]),
    ],
)
def test_estimator_matches_its_formula(estimator: Estimator, expected: list[float]) -> None:
    logp_T = torch.tensor([-1.0, -1.5, -5.0], dtype=torch.float64)
    logp_ref_T = torch.tensor([-1.5, -1.0, -2.0], dtype=torch.float64)
    assert kl_penalty(logp_T, logp_ref_T, estimator=estimator).tolist() == pytest.approx(expected, abs=FORMULA)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "low_var_kl"])
def test_gradient_matches_finite_differences_and_leaves_the_reference_alone(estimator: Estimator) -> None:
    logp_T = torch.tensor([-1.0, -1.5, -5.0], dtype=torch.float64, requires_grad=True)
    logp_ref_T = torch.tensor([-1.5, -1.0, -2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: kl_penalty(x, logp_ref_T.detach(), estimator=estimator), (logp_T,))
    kl_penalty(logp_T, logp_ref_T, estimator=estimator).sum().backward()
    assert logp_ref_T.grad is None


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_mean_under_the_policy_is_the_divergence(estimator: Estimator) -> None:
    policy_V = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    reference_V = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    divergence = (policy_V * (policy_V / reference_V).log()).sum()
    mean = (policy_V * kl_penalty(policy_V.log(), reference_V.log(), estimator=estimator)).sum()
    assert mean.item() == pytest.approx(divergence.item(), abs=FORMULA)


@given(LOGP, LOGP)
def test_k3_is_not_negative_and_low_var_kl_is_at_most_ten(logp: float, logp_ref: float) -> None:
    logp_T, logp_ref_T = torch.tensor([logp], dtype=torch.float64), torch.tensor([logp_ref], dtype=torch.float64)
    assert kl_penalty(logp_T, logp_ref_T, estimator="k3").item() >= -1e-15
    assert kl_penalty(logp_T, logp_ref_T, estimator="low_var_kl").item() <= 10.0


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "low_var_kl"])
def test_equal_policies_have_no_penalty(estimator: Estimator) -> None:
    logp_T = torch.tensor([-1.0, -7.0])
    assert not kl_penalty(logp_T, logp_T.clone(), estimator=estimator).any()


def test_impossible_token_leaves_low_var_kl_and_its_gradient_finite() -> None:
    logp_T = torch.tensor([-200.0], requires_grad=True)
    penalty_T = kl_penalty(logp_T, torch.tensor([-1.0]), estimator="low_var_kl")
    penalty_T.sum().backward()
    assert penalty_T.tolist() == [10.0]
    assert logp_T.grad is not None
    assert logp_T.grad.tolist() == [0.0]
