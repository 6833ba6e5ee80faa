"""A batch is full, or the rollout says why not."""

from dataclasses import replace

import pytest

from lora_rl.config.algorithm import DynamicSampling
from lora_rl.errors import RewardError
from lora_rl.rollout.collection import collect
from lora_rl.rollout.drawing import Drawing
from lora_rl.tracking import check_declared
from tests.unit.rollout.engines import MemoryEngine


async def _never(samples):
    raise RewardError("nothing is graded without dynamic sampling")


async def _by_text(samples):
    return [
        replace(sample, reward=float(sample.response_text), reward_details={"exact": float(sample.response_text)})
        for sample in samples
    ]


def _solved_once_in(rows: set[int]):
    """Answers of which the first sample is right for `rows`, and none for the others."""

    def answer(request) -> str:
        _, row, index = request.id.split("/")
        return "1" if int(row) in rows and index == "0" else "0"

    return answer


def _collect(source, engine, sampling, position=0, dynamic_sampling=None, grade=_never):
    drawing = Drawing(engines=[engine], adapter=engine.adapter, sampling=sampling, seed=0, batch_id="run/it1")
    return collect(source, drawing, position=position, dynamic_sampling=dynamic_sampling, grade=grade)


def _rows(collected) -> list[int]:
    return [int(sample.prompt_id.split("/")[1]) for sample in collected.samples[::2]]


async def test_without_dynamic_sampling_the_next_prompts_are_the_batch(source, adapter, sampling):
    batch = await _collect(source, MemoryEngine(adapter), sampling, position=6)
    assert _rows(batch) == [6, 7, 8, 9]
    assert batch.position == 10
    assert len(batch.samples) == 8
    assert batch.metrics["rollout/rounds"] == 1
    assert batch.metrics["rollout/samples"] == 8
    assert batch.metrics["rollout/prompts_left_out"] == 0
    assert batch.metrics["rollout/tokens_per_s"] > 0


async def test_prompts_left_out_for_their_length_are_counted(source, adapter, sampling):
    # The prompts of rows 10 to 19 have two digits more than those of rows 0 to 9.
    lengths = [len(prompt.tokens) for prompt in source.take(9, 2, max_prompt_tokens=100).prompts]
    shorter = sampling.model_copy(update={"max_prompt_tokens": lengths[0]})
    batch = await _collect(source, MemoryEngine(adapter), shorter, position=8)
    assert _rows(batch) == [8, 9, 0, 1]
    assert batch.position == 22
    assert batch.metrics["rollout/prompts_left_out"] == 10


async def test_groups_with_equal_rewards_are_replaced_by_those_of_later_prompts(source, adapter, sampling):
    engine = MemoryEngine(adapter, _solved_once_in({0, 2, 5, 6, 7}))
    batch = await _collect(source, engine, sampling, dynamic_sampling=DynamicSampling(), grade=_by_text)
    assert _rows(batch) == [0, 2, 5, 6]
    assert [sample.reward for sample in batch.samples] == [1.0, 0.0] * 4
    assert batch.metrics["rollout/rounds"] == 2
    assert batch.metrics["rollout/groups_dropped"] == 3


async def test_the_mean_reward_is_also_given_over_all_groups_drawn(source, adapter, sampling):
    engine = MemoryEngine(adapter, _solved_once_in({0, 2, 5, 6, 7}))
    batch = await _collect(source, engine, sampling, dynamic_sampling=DynamicSampling(), grade=_by_text)
    # Eight groups of two samples, of which five have one right answer.
    assert batch.metrics["drawn/total/mean"] == batch.metrics["drawn/exact/mean"] == 5 / 16
    check_declared(batch.metrics)
    plain = await _collect(source, engine, sampling)
    assert not any(name.startswith("drawn/") for name in plain.metrics)


async def test_a_refill_asks_for_as_many_prompts_as_the_share_kept_so_far_suggests(source, adapter, sampling):
    engine = MemoryEngine(adapter, _solved_once_in(set(range(20)) - {3}))
    eight = sampling.model_copy(update={"rollout_batch_size": 8})
    batch = await _collect(source, engine, eight, dynamic_sampling=DynamicSampling(), grade=_by_text)
    num_prompts = [len(requests) // 2 for requests in engine.batches]
    assert num_prompts == [8, 4]
    assert batch.position == 9


async def test_prompts_drawn_beyond_the_last_group_needed_come_up_again(source, adapter, sampling):
    engine = MemoryEngine(adapter, _solved_once_in(set(range(20)) - {1, 3}))
    first = await _collect(source, engine, sampling, dynamic_sampling=DynamicSampling(), grade=_by_text)
    second = await _collect(
        source, engine, sampling, position=first.position, dynamic_sampling=DynamicSampling(), grade=_by_text
    )
    assert (_rows(first), first.position) == ([0, 2, 4, 5], 6)
    assert _rows(second) == [6, 7, 8, 9]


async def test_rounds_that_do_not_fill_the_batch_end_with_the_numbers(source, adapter, sampling):
    engine = MemoryEngine(adapter, _solved_once_in({1}))
    with pytest.raises(RewardError) as caught:
        await _collect(source, engine, sampling, dynamic_sampling=DynamicSampling(max_rounds=3), grade=_by_text)
    text = str(caught.value)
    assert text.startswith("algorithm.dynamic_sampling.max_rounds: 3 rounds over 12 prompts gave 1 groups")
    assert "sampling.rollout_batch_size wants 4 (equal rewards: 11 at 0)" in text


async def test_samples_without_a_reward_do_not_make_a_group_differ(source, adapter, sampling):
    async def drop_zeros(samples):
        return [replace(sample, reward=1.0 if sample.response_text == "1" else None) for sample in samples]

    engine = MemoryEngine(adapter, _solved_once_in(set(range(20))))
    with pytest.raises(RewardError, match=r"gave 0 groups .* 4 at 1"):
        await _collect(source, engine, sampling, dynamic_sampling=DynamicSampling(max_rounds=1), grade=drop_zeros)
