import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lora_rl.algorithms.importance import icepop_weights, tis_weights
from tests.tolerances import FORMULA

LOGP_ROLLOUT_T = torch.tensor([-1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
LOGP_OLD_T = LOGP_ROLLOUT_T + torch.tensor([0.25, 1.0, 1.5, 4.0], dtype=torch.float64).log()


def test_tis_weight_is_the_ratio_up_to_the_clip() -> None:
    assert tis_weights(LOGP_OLD_T, LOGP_ROLLOUT_T, clip=2.0).tolist() == pytest.approx(
        [0.25, 1.0, 1.5, 2.0], abs=FORMULA
    )


def test_icepop_weight_is_zero_outside_the_band() -> None:
    weights_T = icepop_weights(LOGP_OLD_T, LOGP_ROLLOUT_T, low=0.5, high=2.0)
    assert weights_T.tolist() == pytest.approx([0.0, 1.0, 1.5, 0.0], abs=FORMULA)


def test_the_ends_of_the_icepop_band_belong_to_it() -> None:
    assert icepop_weights(torch.zeros(1), torch.zeros(1), low=1.0, high=1.0).tolist() == [1.0]


@given(st.floats(-60, 0), st.floats(-60, 0), st.floats(0.1, 10))
def test_tis_weight_is_never_negative_nor_above_the_clip(logp_old: float, logp_rollout: float, clip: float) -> None:
    weight = tis_weights(torch.tensor([logp_old]), torch.tensor([logp_rollout]), clip=clip).item()
    assert 0 <= weight <= torch.tensor(clip).item()


def test_weights_have_no_gradient() -> None:
    logp_old_T = LOGP_OLD_T.clone().requires_grad_()
    assert not tis_weights(logp_old_T, LOGP_ROLLOUT_T, clip=2.0).requires_grad
    assert not icepop_weights(logp_old_T, LOGP_ROLLOUT_T, low=0.5, high=2.0).requires_grad


def test_equal_policies_weigh_one() -> None:
    assert tis_weights(LOGP_OLD_T, LOGP_OLD_T, clip=2.0).tolist() == [1.0] * 4


def test_nan_stays_nan() -> None:
    nan_T = torch.tensor([math.nan])
    assert tis_weights(nan_T, torch.zeros(1), clip=2.0).isnan().all()
    assert icepop_weights(nan_T, torch.zeros(1), low=0.5, high=2.0).isnan().all()
