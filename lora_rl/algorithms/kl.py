"""Estimators of KL(policy || reference) from the policy's own samples (http://joschu.net/blog/kl-approx.html)."""

from typing import Literal

from torch import Tensor

from lora_rl.algorithms.ratio import log_ratio


def kl_penalty(logp_T: Tensor, logp_ref_T: Tensor, *, estimator: Literal["k1", "k2", "k3", "low_var_kl"]) -> Tensor:
    """Estimate for each token [T], with d = logp - logp_ref clamped to +-20 and gradient through `logp_T`.

    k1 = d: unbiased, may be negative; as a loss its gradient is zero on average.
    k2 = d^2 / 2: biased; its gradient is that of the divergence.
    k3 = exp(-d) - 1 + d: unbiased, negative by rounding at most.
    low_var_kl: k3 clamped to 10.
    """
    difference_T = log_ratio(logp_T, logp_ref_T.detach())
    match estimator:
        case "k1":
            return difference_T
        case "k2":
            return difference_T.square() / 2
        case "k3":
            return _k3(difference_T)
        case "low_var_kl":
            return _k3(difference_T).clamp(max=10.0)


def _k3(difference_T: Tensor) -> Tensor:
    return (-difference_T).expm1() + difference_T
