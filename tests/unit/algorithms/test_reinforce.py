import pytest
import torch

from lora_rl.algorithms.reinforce import reinforce_plus_plus_advantages
from tests.tolerances import EXACT, FORMULA


def test_rewards_are_whitened_over_the_whole_batch() -> None:
    advantages_B = reinforce_plus_plus_advantages(
        torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([0, 0, 1, 1]), group_baseline=False
    )
    assert advantages_B.tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)


def test_baseline_takes_off_the_mean_of_the_prompt_before_whitening() -> None:
    # Prompt 0 has the rewards 1, 0 and prompt 1 has 4, 4, 1. Centred: 0.5, -0.5, 1, 1, -2; deviation sqrt(6.5 / 4).
    advantages_B = reinforce_plus_plus_advantages(
        torch.tensor([4.0, 1.0, 4.0, 0.0, 1.0], dtype=torch.float64),
        torch.tensor([1, 0, 1, 0, 1]),
        group_baseline=True,
    )
    expected_B = torch.tensor([1.0, 0.5, 1.0, -0.5, -2.0], dtype=torch.float64) / (6.5 / 4) ** 0.5
    torch.testing.assert_close(advantages_B, expected_B, atol=2e-6, rtol=FORMULA)


@pytest.mark.parametrize("group_baseline", [False, True])
def test_equal_rewards_give_zero_advantages(group_baseline: bool) -> None:
    advantages_B = reinforce_plus_plus_advantages(
        torch.full((6,), 0.1), torch.tensor([0, 0, 0, 1, 1, 1]), group_baseline=group_baseline
    )
    assert advantages_B.tolist() == [EXACT] * 6


def test_baseline_gives_zero_advantages_where_each_prompt_has_equal_rewards() -> None:
    advantages_B = reinforce_plus_plus_advantages(
        torch.tensor([0.1, 0.1, 0.1, 0.7, 0.7, 0.7]), torch.tensor([0, 0, 0, 1, 1, 1]), group_baseline=True
    )
    assert advantages_B.tolist() == [EXACT] * 6


def test_rewards_given_are_left_as_they_are() -> None:
    rewards_B = torch.tensor([1.0, 0.0, 1.0, 0.0])
    reinforce_plus_plus_advantages(rewards_B, torch.tensor([0, 0, 1, 1]), group_baseline=True)
    assert rewards_B.tolist() == [1.0, 0.0, 1.0, 0.0]
