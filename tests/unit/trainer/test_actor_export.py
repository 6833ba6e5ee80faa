"""From trained states to PEFT adapters, in the store and in memory, and back."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from lora_rl.config import AdapterConfig
from lora_rl.errors import ConfigError
from lora_rl.store import handover
from lora_rl.trainer.init_adapter import resolve_init
from tests.oracle import logits, peft_from_directory, write_peft_directory
from tests.tolerances import PARITY
from tests.unit.trainer.actor_run import ADAPTER


def test_what_is_handed_over_is_what_is_exported(run, tmp_path, monkeypatch):
    monkeypatch.setattr(handover, "shared_folder", lambda: tmp_path)
    state = run.step(run.new(), run.samples()).state
    handed = run.hand_over(state)
    reply = run.trainer.export_adapter(
        store=run.config, adapter=ADAPTER, state=state, version=1, base_model_name="base", handed_over=handed
    )
    assert reply.adapter == run.export(state).adapter
    found = handover.find(reply.adapter)
    assert found is not None
    assert found.directory == handed
    exported = safetensors.torch.load(run.store.get_blob(reply.adapter.weights))
    shared = safetensors.torch.load_file(f"{handed}/{handover.WEIGHTS}")
    assert exported.keys() == shared.keys()
    assert all(torch.equal(exported[name], shared[name]) for name in exported)
    # the next version's hand-over leaves this one where it is
    other = run.hand_over(run.step(state, run.samples(seed=1)).state, version=2)
    assert handover.find(reply.adapter) == found
    assert handed != other


def test_memory_is_held_for_the_adapters_in_slots_alone(run, tmp_path, monkeypatch):
    monkeypatch.setattr(handover, "shared_folder", lambda: tmp_path / "shared")
    (tmp_path / "shared").mkdir()
    for name in "abc":
        adapter = ADAPTER.model_copy(update={"name": name})
        handed = [run.hand_over(run.new(adapter), version, adapter) for version in (1, 2)]
        assert all(Path(hand).exists() for hand in handed)
    held = {directory.name.split("-")[1] for directory in (tmp_path / "shared").iterdir()}
    assert held == {"b", "c"}


def test_an_export_needs_no_shared_memory(run, tmp_path, monkeypatch):
    monkeypatch.setattr(handover, "shared_folder", lambda: tmp_path / "missing")
    state = run.new()
    assert run.hand_over(state) is None
    gone = str(tmp_path / "missing")
    reply = run.trainer.export_adapter(
        store=run.config, adapter=ADAPTER, state=state, version=1, base_model_name="base", handed_over=gone
    )
    assert reply.adapter == run.export(state).adapter


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
