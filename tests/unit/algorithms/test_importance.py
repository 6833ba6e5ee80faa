import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lora_rl.algorithms.importance import geometric_mask, icepop_mask, sequence_mask, tis_weights
from tests.tolerances import FORMULA

LOGP_ROLLOUT_T = torch.tensor([-1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
LOGP_OLD_T = LOGP_ROLLOUT_T + torch.tensor([0.25, 1.0, 1.5, 4.0], dtype=torch.float64).log()


def test_tis_weight_is_the_ratio_up_to_the_clip() -> None:
    assert tis_weights(LOGP_OLD_T, LOGP_ROLLOUT_T, clip=2.0).tolist() == pytest.approx(
        [0.25, 1.0, 1.5, 2.0], abs=FORMULA
    )


def test_icepop_leaves_out_the_tokens_outside_the_band() -> None:
    assert icepop_mask(LOGP_OLD_T, LOGP_ROLLOUT_T, low=0.5, high=2.0).tolist() == [True, False, False, True]


def test_the_ends_of_the_band_belong_to_it() -> None:
    assert icepop_mask(torch.zeros(1), torch.zeros(1), low=1.0, high=1.0).tolist() == [False]


# Three answers, out of order: ratios 0.25 and 4 (product 1), 1.5, and 1 thrice with 4 (product 4, mean 4 ** 0.25).
SAMPLE_T = torch.tensor([0, 2, 1, 0, 2, 2, 2])
RATIO_T = torch.tensor([0.25, 1.0, 1.5, 4.0, 4.0, 1.0, 1.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("low", "high", "dropped"),
    [(0.5, 3.0, {2}), (0.5, 5.0, set()), (0.5, 1.2, {1, 2}), (0.999, 1.001, {1, 2})],
)
def test_the_sequence_mask_goes_by_the_product(low: float, high: float, dropped: set[int]) -> None:
    masked_T = sequence_mask(RATIO_T.log(), torch.zeros(7), SAMPLE_T, low=low, high=high)
    assert masked_T.tolist() == [sample in dropped for sample in SAMPLE_T.tolist()]


@pytest.mark.parametrize(
    ("low", "high", "dropped"),
    [(0.5, 1.42, {1}), (0.5, 1.41, {1, 2}), (0.5, 1.6, set()), (0.999, 1.001, {1, 2})],
)
def test_the_geometric_mask_goes_by_the_mean_of_logarithms(low: float, high: float, dropped: set[int]) -> None:
    masked_T = geometric_mask(RATIO_T.log(), torch.zeros(7), SAMPLE_T, low=low, high=high)
    assert masked_T.tolist() == [sample in dropped for sample in SAMPLE_T.tolist()]


def test_an_answer_too_unlikely_for_a_float_is_below_every_band() -> None:
    logp_T = torch.full((100,), -50.0)
    sample_T = torch.zeros(100, dtype=torch.int64)
    assert sequence_mask(logp_T, torch.zeros(100), sample_T, low=1e-30, high=2.0).all()
    assert sequence_mask(-logp_T, torch.zeros(100), sample_T, low=0.0, high=2.0).all()
    assert not sequence_mask(logp_T, torch.zeros(100), sample_T, low=0.0, high=2.0).any()


@given(st.floats(-60, 0), st.floats(-60, 0), st.floats(0.1, 10))
def test_tis_weight_is_never_negative_nor_above_the_clip(logp_old: float, logp_rollout: float, clip: float) -> None:
    weight = tis_weights(torch.tensor([logp_old]), torch.tensor([logp_rollout]), clip=clip).item()
    assert 0 <= weight <= torch.tensor(clip).item()


def test_weights_have_no_gradient() -> None:
    logp_old_T = LOGP_OLD_T.clone().requires_grad_()
    assert not tis_weights(logp_old_T, LOGP_ROLLOUT_T, clip=2.0).requires_grad


def test_equal_policies_weigh_one() -> None:
    assert tis_weights(LOGP_OLD_T, LOGP_OLD_T, clip=2.0).tolist() == [1.0] * 4


def test_nan_stays_nan() -> None:
    nan_T = torch.tensor([math.nan])
    assert tis_weights(nan_T, torch.zeros(1), clip=2.0).isnan().all()


def test_no_mask_hides_a_nan() -> None:
    logp_T, rollout_T, sample_T = torch.tensor([math.nan, -9.0]), torch.zeros(2), torch.zeros(2, dtype=torch.int64)
    assert icepop_mask(logp_T, rollout_T, low=0.5, high=2.0).tolist() == [False, True]
    assert not sequence_mask(logp_T, rollout_T, sample_T, low=0.5, high=2.0).any()
    assert not geometric_mask(logp_T, rollout_T, sample_T, low=0.5, high=2.0).any()
