import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lora_rl.algorithms.rloo import rloo_advantages
from tests.tolerances import EXACT, FORMULA


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=9))
def test_advantage_is_the_reward_minus_the_mean_of_the_others(rewards: list[float]) -> None:
    advantages_G = rloo_advantages(torch.tensor(rewards, dtype=torch.float64))
    for index, reward in enumerate(rewards):
        others = rewards[:index] + rewards[index + 1 :]
        assert advantages_G[index].item() == pytest.approx(reward - sum(others) / len(others), abs=FORMULA)


def test_group_with_equal_rewards_gets_zero_advantage() -> None:
    assert rloo_advantages(torch.full((3,), 0.1)).tolist() == [EXACT] * 3


def test_sample_left_alone_in_its_group_gets_zero_advantage() -> None:
    assert rloo_advantages(torch.tensor([1.0])).tolist() == [EXACT]
