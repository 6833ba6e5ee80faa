import pytest

from lora_rl.algorithms.filters import uniform_group


@pytest.mark.parametrize("rewards", [[0.1] * 7, [1.0, 1.0], [0.5], []])
def test_group_that_teaches_nothing_is_uniform(rewards: list[float]) -> None:
    assert uniform_group(rewards, 1e-8)


def test_group_with_one_different_reward_is_not_uniform() -> None:
    assert not uniform_group([0.0] * 15 + [0.1], 1e-8)


def test_the_bound_itself_counts_as_uniform() -> None:
    assert uniform_group([0.0, 1.0, 2.0], 1.0)
    assert not uniform_group([0.0, 1.0, 2.0], 0.999)
