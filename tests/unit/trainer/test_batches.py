import math

import pytest

from lora_rl.data.types import FinishReason
from lora_rl.errors import DataError
from lora_rl.trainer.batches import trainable
from tests.builders import make_sample


def _trainable(*samples):
    return trainable(samples, vocab_size=64, source="cas/samples/x")


def test_samples_without_reward_response_or_end_are_left_out_and_counted():
    kept = make_sample(reward=1.0)
    found = _trainable(
        kept,
        make_sample(reward=None),
        make_sample(reward=1.0, finish_reason=FinishReason.ABORT),
        make_sample(reward=1.0, response_tokens=[], logp_rollout=[]),
    )
    assert found.samples == [kept]
    assert found.metrics["train/samples_left_out"] == 3
    assert found.metrics["train/response_tokens"] == 2


def test_nothing_left_to_train_on_is_refused():
    with pytest.raises(DataError, match="none of 1 samples"):
        _trainable(make_sample(reward=None))


@pytest.mark.parametrize("field", ["prompt_tokens", "response_tokens"])
@pytest.mark.parametrize("token", [-1, 64])
def test_a_token_outside_the_vocabulary_is_refused(field, token):
    with pytest.raises(DataError, match="vocabulary of 64"):
        _trainable(make_sample(reward=1.0, **{field: [3, token]}))


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_not_finite_is_refused(reward):
    with pytest.raises(DataError, match="not finite"):
        _trainable(make_sample(reward=reward))
