"""Engines share a round by whole groups; aborted groups are asked for again."""

import asyncio

import pytest

from lora_rl.data.types import FinishReason
from lora_rl.errors import EngineError
from lora_rl.rollout.drawing import MAX_DRAWS, Drawing
from tests.unit.rollout.engines import FailingEngine, MemoryEngine, StuckEngine


@pytest.fixture
def prompts(source):
    return source.take(0, 5, max_prompt_tokens=100).prompts


def _drawing(engines, adapter, sampling) -> Drawing:
    return Drawing(engines=engines, adapter=adapter, sampling=sampling, seed=0, batch_id="run/it1")


async def test_engines_get_contiguous_whole_groups_and_answers_come_in_the_prompts_order(prompts, adapter, sampling):
    engines = [MemoryEngine(adapter), MemoryEngine(adapter)]
    groups = await _drawing(engines, adapter, sampling).groups(prompts)
    assert engines[0].batches == [["0/0/0", "0/0/1", "0/1/0", "0/1/1"]]
    assert engines[1].batches == [["0/2/0", "0/2/1", "0/3/0", "0/3/1", "0/4/0", "0/4/1"]]
    assert [sample.id for group in groups for sample in group] == engines[0].batches[0] + engines[1].batches[0]
    assert [{sample.prompt_id for sample in group} for group in groups] == [{f"0/{n}"} for n in range(5)]


@pytest.mark.parametrize("num_engines", [2, 3, 7])
async def test_samples_do_not_depend_on_the_number_of_engines(prompts, adapter, sampling, num_engines):
    one = await _drawing([MemoryEngine(adapter)], adapter, sampling).groups(prompts)
    engines = [MemoryEngine(adapter) for _ in range(num_engines)]
    assert await _drawing(engines, adapter, sampling).groups(prompts) == one
    assert sum(len(engine.batches) for engine in engines) == min(num_engines, len(prompts))


async def test_only_the_groups_with_an_aborted_sample_are_asked_for_again(prompts, adapter, sampling):
    engine = MemoryEngine(adapter, aborts={"0/1/0": 1, "0/3/1": 2})
    groups = await _drawing([engine], adapter, sampling).groups(prompts)
    assert engine.batches[1:] == [["0/1/0", "0/1/1", "0/3/0", "0/3/1"], ["0/3/0", "0/3/1"]]
    assert {sample.finish_reason for group in groups for sample in group} == {FinishReason.STOP}
    assert groups == await _drawing([MemoryEngine(adapter)], adapter, sampling).groups(prompts)


async def test_a_group_that_is_always_aborted_fails_the_rollout(prompts, adapter, sampling):
    engine = MemoryEngine(adapter, aborts={"0/3/1": MAX_DRAWS})
    with pytest.raises(EngineError, match=rf"run/it1: 1 groups \(prompt 0/3 first\) were aborted {MAX_DRAWS} times"):
        await _drawing([engine], adapter, sampling).groups(prompts)


async def test_when_an_engine_fails_the_others_are_cancelled(prompts, adapter, sampling):
    stuck = StuckEngine(adapter)
    engines = [stuck, FailingEngine(adapter, when=stuck.called)]
    with pytest.raises(EngineError, match="out of memory"):
        await asyncio.wait_for(_drawing(engines, adapter, sampling).groups(prompts), timeout=60)
    assert stuck.cancelled.is_set()


async def test_every_call_has_a_batch_id_of_its_own(prompts, adapter, sampling):
    engine = MemoryEngine(adapter, aborts={"0/1/0": 1})
    drawing = _drawing([engine], adapter, sampling)
    await drawing.groups(prompts)
    await drawing.groups(prompts)
    assert len(set(engine.batch_ids)) == len(engine.batch_ids) == 3
    assert all(id.startswith("run/it1/") for id in engine.batch_ids)


async def test_completions_in_another_order_are_refused(prompts, adapter, sampling):
    class Shuffling(MemoryEngine):
        async def generate(self, **arguments):
            return (await super().generate(**arguments))[::-1]

    with pytest.raises(EngineError, match="10 completions do not answer the 10 requests in their order"):
        await _drawing([Shuffling(adapter)], adapter, sampling).groups(prompts)
