import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lora_rl.algorithms.grpo import grpo_advantages
from tests.tolerances import EXACT, FORMULA

REWARDS = st.lists(st.integers(-50, 50).map(lambda n: n / 10), min_size=2, max_size=16)


def test_one_right_answer_of_four_matches_the_hand_computed_advantages() -> None:
    # mean 0.25, sample deviation sqrt((0.75^2 + 3 * 0.25^2) / 3) = 0.5
    advantages_G = grpo_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert advantages_G.tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_without_division_the_advantage_is_the_centred_reward() -> None:
    advantages_G = grpo_advantages(torch.tensor([3.0, 0.0, 0.0]), divide_by_std=False)
    assert advantages_G.tolist() == pytest.approx([2.0, -1.0, -1.0], abs=FORMULA)


def test_eps_bounds_the_advantage_of_nearly_equal_rewards() -> None:
    advantages_G = grpo_advantages(torch.tensor([0.0, 1e-6], dtype=torch.float64), eps=1e-6)
    # deviation 1e-6 / sqrt(2), so 0.5e-6 / (0.7071e-6 + 1e-6)
    assert advantages_G.tolist() == pytest.approx([-0.292893, 0.292893], abs=FORMULA)


def test_group_with_equal_rewards_gets_zero_advantage() -> None:
    assert grpo_advantages(torch.full((7,), 0.1)).tolist() == [EXACT] * 7


def test_sample_left_alone_in_its_group_gets_zero_advantage() -> None:
    assert grpo_advantages(torch.tensor([1.0])).tolist() == [EXACT]


@given(REWARDS)
def test_advantages_of_a_group_sum_to_zero(rewards: list[float]) -> None:
    assert grpo_advantages(torch.tensor(rewards)).sum().item() == pytest.approx(0.0, abs=1e-4)


@given(REWARDS, st.floats(-10, 10), st.floats(0.1, 10))
def test_shift_and_scale_of_the_rewards_change_nothing(rewards: list[float], shift: float, scale: float) -> None:
    rewards_G = torch.tensor(rewards, dtype=torch.float64)
    moved_G = grpo_advantages(scale * rewards_G + shift, eps=1e-12)
    still_G = grpo_advantages(rewards_G, eps=1e-12)
    torch.testing.assert_close(moved_G, still_G, atol=FORMULA, rtol=FORMULA)
