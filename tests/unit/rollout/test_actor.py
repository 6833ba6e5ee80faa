"""The actor from position to graded samples in the store, without Ray or vLLM."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from lora_rl.config import RewardConfig, RewardTerm, StoreConfig
from lora_rl.config.algorithm import DynamicSampling
from lora_rl.data.samples_io import read_samples
from lora_rl.errors import ConfigError, EngineError, RewardError
from lora_rl.models.tiny import make_tokenizer
from lora_rl.rollout.actor import RolloutActor
from lora_rl.store import BlobRef, open_store
from tests.unit.rollout.engines import MemoryEngine, StuckEngine

EXACT = RewardConfig(workers=1)
DEADLINE_S = 120


@pytest.fixture
async def actor(model_path) -> AsyncIterator[RolloutActor]:
    actor = RolloutActor(model_path=str(model_path))
    yield actor
    await actor.shutdown()


@pytest.fixture
def store(tmp_path) -> StoreConfig:
    return StoreConfig(uri=str(tmp_path / "store"))


@pytest.fixture
def rollout(actor, store, data, sampling, adapter):
    def call(engines, **arguments):
        defaults = {
            "store": store,
            "data": data,
            "sampling": sampling,
            "seed": 0,
            "position": 0,
            "adapter": adapter,
            "reward": EXACT,
            "dynamic_sampling": None,
            "batch_id": "run/it1",
        }
        return asyncio.wait_for(actor.rollout(engines=engines, **defaults | arguments), DEADLINE_S)

    return call


def _samples(store: StoreConfig, ref: BlobRef):
    return read_samples(open_store(store).get_blob(ref))


def _right_for_even_rows(request) -> str:
    _, row, index = request.id.split("/")
    return str(2 * int(row)) if int(row) % 2 == 0 and index == "0" else "no idea"


async def test_a_rollout_is_stored_and_graded_samples_are_stored_beside_it(actor, rollout, store, adapter):
    drawn = await rollout([MemoryEngine(adapter, _right_for_even_rows)])
    graded = await actor.grade(store=store, samples=drawn.samples, reward=EXACT)
    assert drawn.position == 4
    assert [sample.reward for sample in _samples(store, drawn.samples)] == [None] * 8
    assert [sample.reward for sample in _samples(store, graded.samples)] == [1.0, 0.0, 0.0, 0.0] * 2
    assert graded.metrics["reward/total/mean"] == 0.25
    assert graded.preview.count("\n") == 2 + 4 - 1
    assert "no idea" in graded.preview


async def test_the_same_rollout_gives_the_same_blob_on_any_number_of_engines_and_after_a_restart(
    rollout, store, data, sampling, adapter, model_path
):
    first = await rollout([MemoryEngine(adapter)])
    again = await rollout([MemoryEngine(adapter), MemoryEngine(adapter)])
    restarted = await RolloutActor(model_path=str(model_path)).rollout(
        engines=[MemoryEngine(adapter)],
        store=store,
        data=data,
        sampling=sampling,
        seed=0,
        position=0,
        adapter=adapter,
        reward=EXACT,
        dynamic_sampling=None,
        batch_id="run/it1 again",
    )
    assert first.samples == again.samples == restarted.samples


async def test_another_seed_draws_other_tokens(rollout, adapter):
    first, second = [await rollout([MemoryEngine(adapter)], seed=seed) for seed in (0, 1)]
    assert first.samples != second.samples


async def test_dynamic_sampling_grades_with_the_real_graders_and_grading_again_changes_nothing(
    actor, rollout, store, adapter
):
    drawn = await rollout([MemoryEngine(adapter, _right_for_even_rows)], dynamic_sampling=DynamicSampling())
    samples = _samples(store, drawn.samples)
    assert [sample.prompt_id for sample in samples[::2]] == ["0/0", "0/2", "0/4", "0/6"]
    assert [sample.reward for sample in samples] == [1.0, 0.0] * 4
    no_longer_importable = RewardConfig(terms=(RewardTerm(name="nowhere:grader"),), workers=1)
    graded = await actor.grade(store=store, samples=drawn.samples, reward=no_longer_importable)
    assert graded.samples == drawn.samples
    assert graded.metrics["reward/total/mean"] == 0.5


async def test_a_second_rollout_cancels_the_one_that_runs(rollout, adapter):
    stuck = StuckEngine(adapter)
    first = asyncio.create_task(rollout([stuck]))
    await asyncio.wait_for(stuck.called.wait(), DEADLINE_S)
    second = await rollout([MemoryEngine(adapter)])
    assert second.position == 4
    assert stuck.cancelled.is_set()
    with pytest.raises(EngineError, match="run/it1: cancelled, as another rollout was called for"):
        await first


async def test_a_second_rollout_begins_when_the_cancelled_one_has_ended(rollout, adapter):
    may_end = asyncio.Event()
    stuck, engine = StuckEngine(adapter, may_end=may_end), MemoryEngine(adapter)
    first = asyncio.create_task(rollout([stuck]))
    await asyncio.wait_for(stuck.called.wait(), DEADLINE_S)
    second = asyncio.create_task(rollout([engine]))
    await asyncio.wait_for(stuck.cancelled.wait(), DEADLINE_S)
    done, _ = await asyncio.wait([second], timeout=1)
    assert not done
    assert engine.batches == []
    may_end.set()
    assert (await second).position == 4
    with pytest.raises(EngineError):
        await first


async def test_of_many_calls_the_last_wins(rollout, adapter):
    stuck = [StuckEngine(adapter) for _ in range(3)]
    calls = [asyncio.create_task(rollout([engine])) for engine in stuck]
    await asyncio.wait_for(stuck[-1].called.wait(), DEADLINE_S)
    last = await rollout([MemoryEngine(adapter)])
    assert last.position == 4
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [EngineError] * 3


async def test_a_cancelled_caller_stops_the_engines_and_the_next_call_works(rollout, adapter):
    stuck = StuckEngine(adapter)
    first = asyncio.create_task(rollout([stuck]))
    await asyncio.wait_for(stuck.called.wait(), DEADLINE_S)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert stuck.cancelled.is_set()
    assert (await rollout([MemoryEngine(adapter)])).position == 4


async def test_a_rollout_that_failed_does_not_stand_in_the_way(rollout, adapter):
    broken = MemoryEngine(adapter, aborts={"0/0/0": 100})
    with pytest.raises(EngineError, match="aborted"):
        await rollout([broken])
    assert (await rollout([MemoryEngine(adapter)])).position == 4


async def test_samples_none_of_which_has_a_reward_are_refused_with_the_graders_words(actor, rollout, store, adapter):
    drawn = await rollout([MemoryEngine(adapter)])
    raising = RewardConfig(terms=(RewardTerm(name="tests.unit.rollout.test_actor:raises"),), workers=1, on_error="drop")
    with pytest.raises(RewardError, match=r"none of 8 samples has a reward; .*: .*cannot grade this"):
        await actor.grade(store=store, samples=drawn.samples, reward=raising)


def raises(sample) -> float:
    raise ValueError("cannot grade this")


async def test_starting_twice_loads_once_and_a_model_without_chat_template_is_refused(actor, tmp_path):
    await actor.start()
    loaded = actor._renderer
    await actor.start()
    assert actor._renderer is loaded is not None
    tokenizer = make_tokenizer(512)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "base")
    with pytest.raises(ConfigError, match="no chat template"):
        await RolloutActor(model_path=str(tmp_path / "base")).start()
