import math

import torch

from lora_rl.algorithms.ratio import MAX_LOG_RATIO, log_ratio


def test_log_ratio_is_the_difference() -> None:
    assert log_ratio(torch.tensor([-1.0]), torch.tensor([-3.0])).tolist() == [2.0]


def test_infinite_log_probs_are_clamped_without_gradient() -> None:
    logp_T = torch.tensor([-1.0, -math.inf, -200.0], requires_grad=True)
    logp_old_T = torch.tensor([-math.inf, -1.0, -1.0])
    ratio_T = log_ratio(logp_T, logp_old_T)
    assert ratio_T.tolist() == [MAX_LOG_RATIO, -MAX_LOG_RATIO, -MAX_LOG_RATIO]
    ratio_T.exp().sum().backward()
    assert logp_T.grad is not None
    assert logp_T.grad.tolist() == [0.0, 0.0, 0.0]


def test_nan_stays_nan() -> None:
    assert log_ratio(torch.tensor([math.nan]), torch.tensor([-1.0])).isnan().all()
