"""Steps of the trainer, and the states they start from and end in."""

import dataclasses

import pytest
import torch

from lora_rl.config import OptimizerConfig, TrainerConfig
from lora_rl.data.samples_io import write_samples
from lora_rl.errors import TrainerError
from lora_rl.trainer.actor import TrainerActor
from lora_rl.trainer.offload import Offload
from tests.builders import make_training_samples
from tests.oracle import base_model
from tests.tolerances import EXACT
from tests.unit.trainer.actor_run import ADAPTER, Run, started_trainer


def test_start_reports_versions_and_sizes_and_later_calls_do_no_more(trainer, tiny_qwen3):
    first, again = trainer.start(), trainer.start()
    assert first["versions"]["megatron-core"] == "0.19.2"
    assert first["parameters"] == base_model(tiny_qwen3).num_parameters()
    assert first["base"] == again["base"]


def test_nothing_works_before_start(tiny_qwen3, run):
    sleeping = TrainerActor(model_path=tiny_qwen3, dtype="float32", trainer=TrainerConfig())
    with pytest.raises(TrainerError, match="not started"):
        sleeping.new_state(store=run.config, adapter=ADAPTER, seed=0)


def test_a_step_after_a_turn_off_the_device_has_the_same_bits(run, monkeypatch):
    # on a CPU nothing would move
    monkeypatch.setattr("lora_rl.trainer.actor._on_device", lambda tensors: tensors)
    trainer, start, samples = run.trainer, run.new(), run.samples()
    first = run.step(start, samples)
    second = run.step(first.state, samples)
    monkeypatch.setattr(trainer, "_offload", Offload(trainer._model.gpt.parameters()))
    again = run.step(start, samples)
    assert trainer.offload() == "offloaded"
    assert trainer.offload() == "already_offloaded"
    assert sum(tensor.untyped_storage().nbytes() for tensor in trainer._table.tensors()) == 0
    with pytest.raises(TrainerError, match="call onload first"):
        run.step(again.state, samples)
    assert trainer.onload() == "onloaded"
    assert trainer.onload() == "already_here"
    assert run.step(again.state, samples).state == second.state


def test_the_same_seed_gives_the_same_state(run):
    assert run.new(seed=3) == run.new(seed=3) != run.new(seed=4)


def test_a_step_moves_every_weight_and_names_its_state(run):
    start = run.new()
    reply = run.step(start, run.samples())
    before, after = run.state(start), run.state(reply.state)
    assert reply.stepped
    assert (after.clock.steps, after.clock.samples, after.clock.skipped_in_a_row) == (1, 12, 0)
    # B starts at zero, so only B has a gradient in the first step; weight decay moves A.
    assert all(not torch.equal(before.weights[name], after.weights[name]) for name in before.weights)


def test_the_same_start_samples_and_seed_give_the_same_bytes(run, tiny_qwen3, device, tmp_path):
    start, samples = run.new(), run.samples()
    first = run.step(start, samples)
    again = run.step(start, samples)
    other = Run(started_trainer(tiny_qwen3, device, max_tokens_per_gpu=4096), run.config.uri)
    assert first.state == again.state == other.step(start, samples).state
    assert {k: v for k, v in first.metrics.items() if k.startswith("loss")} == {
        k: v for k, v in again.metrics.items() if k.startswith("loss")
    }


def test_a_run_through_the_store_is_the_run_in_memory(run, tiny_qwen3, device):
    batches = [run.samples(seed) for seed in range(3)]
    state = run.new()
    for samples in batches:
        state = run.step(state, samples).state
    resumed = run.new()
    for samples in batches:
        fresh = Run(started_trainer(tiny_qwen3, device), run.config.uri)
        resumed = fresh.step(resumed, samples).state
    assert resumed == state


def test_a_step_from_an_older_state_restores_it(run):
    start = run.new()
    first = run.step(start, run.samples(0))
    run.step(first.state, run.samples(1))
    assert run.step(start, run.samples(0)).state == first.state


def test_equal_rewards_everywhere_move_nothing_but_the_sample_clock(run):
    start = run.step(run.new(), run.samples()).state
    reply = run.step(start, run.samples(1, lambda sample: dataclasses.replace(sample, reward=1.0)))
    before, after = run.state(start), run.state(reply.state)
    assert not reply.stepped
    assert all(torch.equal(before.weights[name], after.weights[name]) for name in before.weights)
    assert all(torch.equal(before.moments["exp_avg"][n], after.moments["exp_avg"][n]) for n in before.weights)
    assert (after.clock.steps, after.clock.samples, after.clock.skipped_in_a_row) == (1, 24, 0)


def _endless(sample):
    return dataclasses.replace(sample, logp_rollout=[float("nan")] * len(sample.logp_rollout))


def test_a_gradient_that_is_not_finite_skips_the_step_and_too_many_stop_the_run(run):
    state = run.new()
    before = run.state(state)
    for skipped in (1, 2):
        reply = run.step(state, run.samples(0, _endless))
        state, after = reply.state, run.state(reply.state)
        assert not reply.stepped
        assert after.clock.skipped_in_a_row == reply.metrics["train/skipped_in_a_row"] == skipped
        assert all(torch.equal(before.weights[name], after.weights[name]) for name in before.weights)
    with pytest.raises(TrainerError, match=r"3 steps in a row was not finite.*raise trainer.max_skipped_steps"):
        run.step(state, run.samples(0, _endless))
    assert run.step(state, run.samples()).stepped


def test_samples_without_a_reward_are_left_out_and_counted(run):
    start = run.new()
    ungraded = run.samples(0, lambda s: dataclasses.replace(s, reward=None) if s.prompt_id == "0/1" else s)
    reply = run.step(start, ungraded)
    assert (reply.metrics["train/samples"], reply.metrics["train/samples_left_out"]) == (8, 4)
    without = [sample for sample in make_training_samples() if sample.prompt_id != "0/1"]
    assert run.step(start, run.store.put_blob("samples", write_samples(without))).state == reply.state


def test_dropout_depends_on_the_step_and_the_seed_alone(run):
    adapter = ADAPTER.model_copy(update={"dropout": 0.2})
    start, samples = run.new(adapter), run.samples()
    first = run.step(start, samples, adapter)
    assert run.step(start, samples, adapter).state == first.state
    assert run.step(start, samples, adapter, seed=1).state != first.state


def test_a_shared_a_is_trained_and_saved(run):
    shared = ADAPTER.model_copy(update={"type": "lora"})
    start = run.new(shared)
    reply = run.step(start, run.samples(), shared)
    name = "model.layers.0.self_attn.q_proj.lora_B.weight"
    assert reply.stepped
    assert not torch.equal(run.state(start).weights[name], run.state(reply.state).weights[name])
    second = run.state(run.step(reply.state, run.samples(1), shared).state).weights
    name = "model.layers.0.self_attn.linear_qkv.lora_A.weight"
    assert not torch.equal(run.state(start).weights[name], second[name])


def test_the_learning_rate_follows_the_adapter_s_own_samples(run):
    optimizer = OptimizerConfig(lr=1e-2, schedule="linear", decay_samples=24)
    adapter = ADAPTER.model_copy(update={"optimizer": optimizer})
    first = run.step(run.new(adapter), run.samples(), adapter)
    second = run.step(first.state, run.samples(), adapter)
    assert [first.metrics["train/lr"], second.metrics["train/lr"]] == pytest.approx([5e-3, 0.0])
    assert second.metrics["train/lr"] == EXACT
