"""Groups carry what made them, and say whether they are worth training."""

from dataclasses import replace

import pytest

from lora_rl.data.types import FinishReason, Prompt
from lora_rl.engine.types import Completion
from lora_rl.errors import EngineError
from lora_rl.rollout.groups import complete, group_of, informative
from tests.builders import make_group

PROMPT = Prompt(id="0/7", text="2 + 2?", tokens=[5, 6], label="4", metadata={"level": 1})


@pytest.fixture
def completion(adapter) -> Completion:
    return Completion(
        id="0/7/0",
        tokens=[9, 2],
        text="4",
        logp=[-0.5, -0.1],
        finish_reason=FinishReason.STOP,
        adapter_version=adapter.label,
        adapter_digest=adapter.digest,
    )


def test_a_sample_joins_prompt_and_completion(adapter, completion):
    (sample,) = group_of(PROMPT, [completion], adapter)
    assert (sample.id, sample.prompt_id, sample.prompt_tokens, sample.prompt_text) == ("0/7/0", "0/7", [5, 6], "2 + 2?")
    assert (sample.response_tokens, sample.response_text, sample.logp_rollout) == ([9, 2], "4", [-0.5, -0.1])
    assert (sample.label, sample.metadata, sample.reward) == ("4", {"level": 1}, None)
    assert (sample.adapter_version, sample.adapter_digest) == (adapter.label, adapter.digest)


def test_an_answer_by_another_version_or_other_weights_is_refused(adapter, completion):
    with pytest.raises(EngineError, match=r"sample 0/7/0: made by default@2 .* not by default@3"):
        group_of(PROMPT, [replace(completion, adapter_version="default@2")], adapter)
    with pytest.raises(EngineError, match=r"made by default@3 \(eeeeeeeeeeee\)"):
        group_of(PROMPT, [replace(completion, adapter_digest="e" * 64)], adapter)


def test_an_answer_without_a_log_probability_for_each_token_is_refused(adapter, completion):
    with pytest.raises(EngineError, match="1 log-probabilities for 2 tokens"):
        group_of(PROMPT, [replace(completion, logp=[-0.5])], adapter)


def test_one_aborted_sample_makes_a_group_incomplete():
    group = make_group("0/0", [None, None])
    assert complete(group)
    assert not complete([group[0], replace(group[1], finish_reason=FinishReason.ABORT)])


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([0.0, 1.0], True), ([1.0, 1.0], False), ([0.0, None, 1.0], True), ([0.0, None], False), ([None, None], False)],
)
def test_a_group_teaches_if_the_rewards_it_has_differ(rewards, expected):
    assert informative(make_group("0/0", rewards), 1e-8) is expected


def test_rewards_that_differ_less_than_asked_do_not_teach():
    assert not informative(make_group("0/0", [0.0, 0.1]), 0.1)
