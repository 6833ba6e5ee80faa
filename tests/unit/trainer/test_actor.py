import dataclasses
import json

import pytest
import safetensors.torch
import torch

from lora_rl.config import AdapterConfig, AlgorithmConfig, OptimizerConfig, SamplingConfig, StoreConfig, TrainerConfig
from lora_rl.data.samples_io import write_samples
from lora_rl.errors import ConfigError, DataError, DigestMismatch, StoreError, TrainerError
from lora_rl.models.tiny import make_tiny_qwen3
from lora_rl.store import handover, open_store
from lora_rl.trainer.actor import TrainerActor
from lora_rl.trainer.init_adapter import resolve_init
from lora_rl.trainer.offload import Offload
from lora_rl.trainer.state_io import decode_state
from lora_rl.trainer.types import AdapterBatch
from tests.builders import make_training_samples
from tests.oracle import base_model, logits, peft_from_directory, write_peft_directory
from tests.tolerances import EXACT, PARITY

ADAPTER = AdapterConfig(rank=4, alpha=8, optimizer=OptimizerConfig(lr=1e-2, weight_decay=0.1))
ALGORITHM = AlgorithmConfig(max_mismatch=None)


class Run:
    """A started trainer and a store of its own."""

    def __init__(self, trainer: TrainerActor, uri: str):
        self.trainer = trainer
        self.config = StoreConfig(uri=uri)
        self.store = open_store(self.config)

    def samples(self, seed: int = 0, change=None):
        samples = make_training_samples(seed=seed)
        return self.store.put_blob("samples", write_samples([change(s) for s in samples] if change else samples))

    def new(self, adapter: AdapterConfig = ADAPTER, seed: int = 0):
        return self.trainer.new_state(store=self.config, adapter=adapter, seed=seed)

    def step(
        self, start, samples, adapter: AdapterConfig = ADAPTER, algorithm: AlgorithmConfig = ALGORITHM, seed: int = 0
    ):
        return self.trainer.train_step(
            store=self.config,
            adapter=adapter,
            start=start,
            samples=samples,
            algorithm=algorithm,
            sampling=SamplingConfig(),
            seed=seed,
        )

    def export(self, state, adapter: AdapterConfig = ADAPTER, version: int = 1):
        return self.trainer.export_adapter(
            store=self.config, adapter=adapter, state=state, version=version, base_model_name="base"
        )

    def hand_over(self, state, version: int = 1):
        return self.trainer.hand_over(
            store=self.config, adapter=ADAPTER, state=state, version=version, base_model_name="base"
        )

    def state(self, ref):
        return decode_state(self.store.get_blob(ref), ref.key)


def _trainer(path, device, **options) -> TrainerActor:
    actor = TrainerActor(model_path=path, dtype="float32", trainer=TrainerConfig(slots=2, max_rank=8, **options))
    actor.start()
    return actor


@pytest.fixture(scope="session")
def trainer(tiny_qwen3, device) -> TrainerActor:
    return _trainer(tiny_qwen3, device)


@pytest.fixture
def run(trainer, tmp_path) -> Run:
    return Run(trainer, str(tmp_path / "store"))


def test_start_reports_versions_and_sizes_and_later_calls_do_no_more(trainer, tiny_qwen3):
    first, again = trainer.start(), trainer.start()
    assert first["versions"]["megatron-core"] == "0.19.2"
    assert first["parameters"] == base_model(tiny_qwen3).num_parameters()
    assert first["base"] == again["base"]


def test_nothing_works_before_start(tiny_qwen3, run):
    sleeping = TrainerActor(model_path=tiny_qwen3, dtype="float32", trainer=TrainerConfig())
    with pytest.raises(TrainerError, match="not started"):
        sleeping.new_state(store=run.config, adapter=ADAPTER, seed=0)


def test_what_is_handed_over_is_what_is_exported(run, tmp_path, monkeypatch):
    monkeypatch.setattr(handover, "shared_folder", lambda: tmp_path)
    state = run.step(run.new(), run.samples()).state
    handed = run.hand_over(state)
    reply = run.trainer.export_adapter(
        store=run.config, adapter=ADAPTER, state=state, version=1, base_model_name="base", handed_over=handed
    )
    assert reply.adapter == run.export(state).adapter
    assert handover.find(reply.adapter) == handed
    exported = safetensors.torch.load(run.store.get_blob(reply.adapter.weights))
    shared = safetensors.torch.load_file(f"{handed.directory}/{handover.WEIGHTS}")
    assert exported.keys() == shared.keys()
    assert all(torch.equal(exported[name], shared[name]) for name in exported)
    # the next version's hand-over leaves this one where it is
    other = run.hand_over(run.step(state, run.samples(seed=1)).state, version=2)
    assert handover.find(reply.adapter) == handed != other


def test_an_export_needs_no_shared_memory(run, tmp_path, monkeypatch):
    monkeypatch.setattr(handover, "shared_folder", lambda: tmp_path / "missing")
    state = run.new()
    assert run.hand_over(state) is None
    gone = handover.Handover(directory=str(tmp_path / "missing"), digest="d")
    reply = run.trainer.export_adapter(
        store=run.config, adapter=ADAPTER, state=state, version=1, base_model_name="base", handed_over=gone
    )
    assert reply.adapter == run.export(state).adapter


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
    other = Run(_trainer(tiny_qwen3, device, max_tokens_per_gpu=4096), run.config.uri)
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
        fresh = Run(_trainer(tiny_qwen3, device), run.config.uri)
        resumed = fresh.step(resumed, samples).state
    assert resumed == state


def test_a_step_from_an_older_state_restores_it(run):
    start = run.new()
    first = run.step(start, run.samples(0))
    run.step(first.state, run.samples(1))
    assert run.step(start, run.samples(0)).state == first.state


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


def test_too_large_a_mismatch_stops_before_the_step(run):
    start, samples = run.new(), run.samples()
    expected = run.step(start, samples).state
    with pytest.raises(TrainerError, match=r"max_mismatch 0.001; check that both run the same base"):
        run.step(start, samples, algorithm=AlgorithmConfig(max_mismatch=0.001))
    assert run.step(start, samples).state == expected


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


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rank": 1, "dropout": 0.3},
        {"rank": 3, "rslora": True, "type": "lora"},
        {"rank": 7, "alpha": 5.5, "target_modules": ("linear_qkv", "*.layers.1.*"), "exclude_modules": ("v_proj",)},
    ],
    ids=["plain", "dropout", "shared-rslora", "some"],
)
def test_an_export_is_what_the_trainer_computes(fields, run, tiny_qwen3, tmp_path):
    config = ADAPTER.model_copy(update=fields)
    first = run.step(run.new(config), run.samples(), config).state
    state = run.step(first, run.samples(1), config).state
    adapter = run.export(state, config, version=7).adapter
    assert adapter.label == "default@7"
    files = [run.store.get_blob(ref) for ref in (adapter.weights, adapter.config)]
    reference = peft_from_directory(tiny_qwen3, write_peft_directory(tmp_path / "peft", *files))
    probe = json.loads(run.store.get_blob(adapter.probe))
    with torch.no_grad():
        logp = logits(reference, probe["prompt_tokens"])[-1].log_softmax(-1)
        with reference.disable_adapter():
            logp_base = logits(reference, probe["prompt_tokens"])[-1].log_softmax(-1)
    assert len(set(probe["token_ids"])) == 16
    assert probe["logp"] == pytest.approx(logp[probe["token_ids"]].tolist(), abs=PARITY)
    assert probe["logp_base"] == pytest.approx(logp_base[probe["token_ids"]].tolist(), abs=PARITY)
    assert probe["logp"] == sorted(probe["logp"], reverse=True)
    assert probe["logp"][0] == pytest.approx(logp.max().item(), abs=PARITY)
    assert (logp - logp_base).abs().max() > 100 * PARITY


def test_only_what_is_to_be_trained_moves_and_everything_is_exported(run):
    adapter = ADAPTER.model_copy(update={"only_train": ("*.layers.1.*.lora_B",)})
    start = run.new(adapter)
    reply = run.step(run.step(start, run.samples(), adapter).state, run.samples(1), adapter)
    before, after = run.state(start), run.state(reply.state)
    moved = {name for name in before.weights if not torch.equal(before.weights[name], after.weights[name])}
    assert moved == {name for name in before.weights if ".layers.1." in name and "lora_B" in name}
    assert {name for name, moment in after.moments["exp_avg_sq"].items() if moment.any()} == moved
    exported = safetensors.torch.load(run.store.get_blob(run.export(reply.state, adapter).adapter.weights))
    assert len(exported) == len(before.weights)


def test_an_export_does_not_change_what_comes_after(run):
    start = run.new()
    first = run.step(start, run.samples()).state
    expected = run.step(first, run.samples(1)).state
    assert run.step(start, run.samples()).state == first
    assert run.export(first).adapter == run.export(first).adapter
    assert run.step(first, run.samples(1)).state == expected


def test_a_start_from_a_peft_adapter_is_that_adapter(run, tmp_path):
    exported = run.export(run.step(run.new(), run.samples()).state).adapter
    files = [run.store.get_blob(ref) for ref in (exported.weights, exported.config)]
    directory = write_peft_directory(tmp_path / "peft", *files)
    adapter = resolve_init(AdapterConfig(init=str(directory)))
    again = run.export(run.new(adapter), adapter).adapter
    assert again.weights == exported.weights
    assert run.state(run.new(adapter)).clock.steps == 0


def test_a_start_from_another_kind_of_adapter_is_refused(run, tmp_path):
    exported = run.export(run.new()).adapter
    files = [run.store.get_blob(ref) for ref in (exported.weights, exported.config)]
    directory = write_peft_directory(tmp_path / "peft", *files)
    with pytest.raises(ConfigError, match=r"adapter.rank: 8, but 4 in adapter.init .*; leave it out or give 4"):
        run.new(AdapterConfig(rank=8, alpha=8, init=str(directory)))


@pytest.mark.parametrize(
    ("adapter", "text"),
    [
        (AdapterConfig(rank=9), r"adapter.rank: 9 exceeds trainer.max_rank 8"),
        (AdapterConfig(rank=4, target_modules=("q_porj",)), r"'q_porj' matches no projection"),
        (AdapterConfig(rank=4, target_modules=("*.layers.7.*",)), r"layers\.7\.\*' matches no projection"),
        (AdapterConfig(rank=4, only_train=("lora_C",)), r"'lora_C' matches nothing"),
    ],
)
def test_an_adapter_that_cannot_be_is_refused(adapter, text, run):
    with pytest.raises(ConfigError, match=text):
        run.new(adapter)


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


@pytest.mark.parametrize(
    "fields",
    [{"rank": 8, "alpha": 16.0}, {"alpha": 4.0}, {"target_modules": ("q_proj",)}, {"rslora": True}, {"type": "lora"}],
)
def test_a_state_of_another_adapter_is_refused(fields, run):
    with pytest.raises(ConfigError, match="the values that the run began with"):
        run.step(run.new(), run.samples(), ADAPTER.model_copy(update=fields))


def test_a_state_of_another_base_is_refused(run, device, tmp_path):
    other = Run(_trainer(make_tiny_qwen3(tmp_path / "other", seed=1), device), run.config.uri)
    with pytest.raises(TrainerError, match="use the model that the run began with"):
        run.step(other.new(), run.samples())


def test_missing_and_damaged_states_are_refused(run):
    start = run.new()
    with pytest.raises(StoreError, match="missing"):
        run.step(dataclasses.replace(start, key="cas/state/none"), run.samples())
    empty = run.store.put_blob("state", b"")
    with pytest.raises(DataError, match="no train state"):
        run.step(empty, run.samples())
    run.store.write(start.key, b"\0" * start.size)
    with pytest.raises(DigestMismatch):
        run.step(start, run.samples())


def test_samples_that_cannot_be_trained_are_refused(run):
    start = run.new()
    with pytest.raises(DataError, match="not a whole Parquet"):
        run.step(start, run.store.put_blob("samples", b"x"))
    with pytest.raises(DataError, match="vocabulary of 512"):
        run.step(start, run.samples(0, lambda sample: dataclasses.replace(sample, prompt_tokens=[512])))


def test_the_learning_rate_follows_the_adapter_s_own_samples(run):
    optimizer = OptimizerConfig(lr=1e-2, schedule="linear", decay_samples=24)
    adapter = ADAPTER.model_copy(update={"optimizer": optimizer})
    first = run.step(run.new(adapter), run.samples(), adapter)
    second = run.step(first.state, run.samples(), adapter)
    assert [first.metrics["train/lr"], second.metrics["train/lr"]] == pytest.approx([5e-3, 0.0])
    assert second.metrics["train/lr"] == EXACT
