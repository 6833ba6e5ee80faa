"""Several adapters in the slots of one trainer, and gradients that wait there."""

import dataclasses

import pytest

from lora_rl.config import SamplingConfig
from lora_rl.errors import ConfigError, TrainerError
from lora_rl.trainer.types import AdapterBatch
from tests.unit.trainer.actor_run import ADAPTER, ALGORITHM


def test_a_third_adapter_takes_the_slot_used_least_recently_and_nobody_notices(run):
    adapters = [ADAPTER.model_copy(update={"name": name}) for name in ("a", "b", "c")]
    states = [run.new(adapter, seed) for seed, adapter in enumerate(adapters)]
    alone = [run.step(state, run.samples(), adapter).state for state, adapter in zip(states, adapters, strict=True)]
    again = [run.step(state, run.samples(), adapter).state for state, adapter in zip(states, adapters, strict=True)]
    assert alone == again
    loads = [
        run.trainer.load_state(store=run.config, adapter=adapter, state=state)
        for state, adapter in zip(again, adapters, strict=True)
    ]
    # Each load made room for the next by the adapter used least recently.
    assert loads == ["loaded", "loaded", "loaded"]
    assert run.trainer.load_state(store=run.config, adapter=adapters[2], state=again[2]) == "already_loaded"


def test_two_adapters_in_one_call_train_as_in_two(run):
    adapters = [ADAPTER.model_copy(update={"name": name}) for name in ("a", "b")]
    states = [run.new(adapter, seed) for seed, adapter in enumerate(adapters)]
    alone = [
        run.step(state, run.samples(seed), adapter).state
        for seed, (state, adapter) in enumerate(zip(states, adapters, strict=True))
    ]
    batches = [
        AdapterBatch(
            adapter=adapter, start=state, samples=run.samples(seed), algorithm=ALGORITHM, sampling=SamplingConfig()
        )
        for seed, (state, adapter) in enumerate(zip(states, adapters, strict=True))
    ]
    metrics = run.trainer.forward_backward(store=run.config, batches=batches, seed=0)
    assert metrics.keys() == {"a", "b"}
    joint = []
    for adapter in adapters:
        assert run.trainer.optim_step(adapter=adapter).stepped
        joint.append(run.trainer.save_state(store=run.config, adapter=adapter))
    assert joint == alone


def test_more_adapters_than_slots_in_one_call_are_refused(run):
    batch = AdapterBatch(
        adapter=ADAPTER, start=run.new(), samples=run.samples(), algorithm=ALGORITHM, sampling=SamplingConfig()
    )
    named = [dataclasses.replace(batch, adapter=ADAPTER.model_copy(update={"name": name})) for name in "abc"]
    for batches in (named, [batch, batch]):
        with pytest.raises(ConfigError, match="need a slot each"):
            run.trainer.forward_backward(store=run.config, batches=batches, seed=0)


def test_a_gradient_that_waits_for_its_step_is_never_dropped_in_silence(run):
    adapters = [ADAPTER.model_copy(update={"name": name}) for name in "abc"]
    states = {adapter.name: run.new(adapter) for adapter in adapters}

    def gather(adapter, seed=0):
        batch = AdapterBatch(
            adapter=adapter,
            start=states[adapter.name],
            samples=run.samples(seed),
            algorithm=ALGORITHM,
            sampling=SamplingConfig(),
        )
        run.trainer.forward_backward(store=run.config, batches=[batch], seed=0)

    first, second, third = adapters
    gather(first)
    run.trainer.load_state(store=run.config, adapter=second, state=states["b"])
    gather(third)
    assert run.trainer.optim_step(adapter=first).stepped
    states["c"] = run.new(third, seed=5)
    with pytest.raises(TrainerError, match="of another start state; call optim_step first"):
        run.trainer.load_state(store=run.config, adapter=third, state=states["c"])
    gather(second)
    with pytest.raises(TrainerError, match="all 2 hold gradients"):
        run.trainer.load_state(store=run.config, adapter=first, state=states["a"])
    assert all(run.trainer.optim_step(adapter=adapter).stepped for adapter in (second, third))


def test_a_step_without_a_gradient_is_refused(run):
    run.trainer.load_state(store=run.config, adapter=ADAPTER, state=run.new())
    with pytest.raises(TrainerError, match="no gradient"):
        run.trainer.optim_step(adapter=ADAPTER)


def test_a_gradient_left_over_from_a_broken_call_is_not_added(run):
    start, samples = run.new(), run.samples()
    expected = run.step(start, samples).state
    batch = AdapterBatch(
        adapter=ADAPTER, start=start, samples=run.samples(9), algorithm=ALGORITHM, sampling=SamplingConfig()
    )
    run.trainer.forward_backward(store=run.config, batches=[batch], seed=0)
    assert run.step(start, samples).state == expected
