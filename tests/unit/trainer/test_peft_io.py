import json

import pytest
import safetensors.torch
import torch

from lora_rl.config import AdapterConfig
from lora_rl.errors import ConfigError, DataError
from lora_rl.trainer.adapter import lora_of
from lora_rl.trainer.peft_io import export_peft, import_peft
from tests.oracle import base_model, logits, peft_from_directory, peft_from_weights, save_peft, write_peft_directory
from tests.tolerances import PARITY
from tests.unit.trainer.forward import random_weights, sequence_logits

TOKENS = [3, 44, 500, 7, 7, 120]
ADAPTER = AdapterConfig(rank=4, alpha=8)
SHARED = AdapterConfig(rank=4, alpha=8, type="lora")


@pytest.fixture
def exported(bank, tmp_path):
    """Writes an adapter of random weights as a PEFT directory; gives what it is, its weights and the directory."""

    def export(adapter: AdapterConfig = ADAPTER):
        lora = lora_of(adapter, 2)
        weights = random_weights(bank, lora)
        files = export_peft(lora, adapter, weights, num_layers=2, base_model_name="base")
        return lora, weights, write_peft_directory(tmp_path / "adapter", *files)

    return export


def _import(bank, directory, adapter=ADAPTER):
    lora = lora_of(adapter, 2)
    return import_peft(str(directory), lora, adapter, bank.shapes(lora))


def _edit_config(directory, **fields) -> None:
    path = directory / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    "adapter",
    [
        ADAPTER,
        AdapterConfig(rank=7, alpha=8, rslora=True),
        AdapterConfig(rank=3, alpha=5.5, target_modules=("q_proj", "down_proj")),
        AdapterConfig(rank=1, alpha=2, target_modules=("*.layers.1.mlp.*", "*.layers.0.*.q_proj")),
        SHARED,
        AdapterConfig(rank=3, alpha=6, rslora=True, type="lora", exclude_modules=("k_proj", "*.layers.0.*.up_proj")),
    ],
    ids=["all", "rslora", "some", "pattern", "shared", "shared-some"],
)
def test_peft_loads_an_export_and_has_the_trainer_s_logits(adapter, exported, model, bank, tiny_qwen3):
    lora, weights, directory = exported(adapter)
    bank.fill(0, lora, weights)
    ours = sequence_logits(model, bank, TOKENS, slot=0)
    assert (ours - logits(peft_from_directory(tiny_qwen3, directory), TOKENS)).abs().max() < PARITY
    assert (ours - logits(base_model(tiny_qwen3), TOKENS)).abs().max() > 0.05


@pytest.mark.parametrize(
    "adapter",
    [
        ADAPTER,
        SHARED,
        AdapterConfig(rank=1, alpha=3, target_modules=("*.layers.1.*",)),
        AdapterConfig(rank=7, alpha=0.5, rslora=True, type="lora", target_modules=("v_proj", "linear_fc1")),
    ],
    ids=["all", "shared", "some", "shared-some"],
)
def test_import_of_an_export_is_exact(adapter, exported, bank):
    _, weights, directory = exported(adapter)
    found = _import(bank, directory, adapter)
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_an_export_repeats_a_shared_a_for_each_projection(exported):
    lora, weights, directory = exported(SHARED)
    tensors = safetensors.torch.load_file(directory / "adapter_model.safetensors")
    assert len(tensors) == 2 * len(lora.modules) > len(weights)
    shared = weights["model.layers.1.self_attn.linear_qkv.lora_A.weight"]
    for name in ("q_proj", "k_proj", "v_proj"):
        assert torch.equal(tensors[f"base_model.model.model.layers.1.self_attn.{name}.lora_A.weight"], shared)


def test_separate_a_cannot_become_a_shared_one(exported, bank):
    _, _, directory = exported(ADAPTER)
    with pytest.raises(ConfigError, match=r"layers.0.self_attn.k_proj.lora_A.* canonical_lora"):
        _import(bank, directory, SHARED)


def test_an_export_has_the_form_that_peft_itself_writes(exported, tiny_qwen3, tmp_path):
    _, weights, directory = exported()
    theirs, config = save_peft(peft_from_weights(tiny_qwen3, weights, rank=4, alpha=8), tmp_path / "peft")
    ours = safetensors.torch.load_file(directory / "adapter_model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    mine = json.loads((directory / "adapter_config.json").read_text())
    same = ("peft_type", "task_type", "r", "lora_alpha", "bias", "lora_dropout", "use_rslora", "fan_in_fan_out")
    assert {field: mine[field] for field in same} == {field: config[field] for field in same}
    assert sorted(mine["target_modules"]) == sorted(config["target_modules"])


def test_what_peft_wrote_can_be_imported(bank, tiny_qwen3, tmp_path):
    weights = random_weights(bank, lora_of(ADAPTER, 2))
    save_peft(peft_from_weights(tiny_qwen3, weights, rank=4, alpha=8), tmp_path / "peft")
    found = _import(bank, (tmp_path / "peft").as_uri())
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_the_same_adapter_gives_the_same_bytes(bank):
    lora = lora_of(ADAPTER, 2)
    first, again = (
        export_peft(lora, ADAPTER, random_weights(bank, lora), num_layers=2, base_model_name="base") for _ in range(2)
    )
    assert first == again


def test_an_empty_export_is_refused():
    with pytest.raises(DataError, match="no weights"):
        export_peft(lora_of(ADAPTER, 2), ADAPTER, {}, num_layers=2, base_model_name="base")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"r": 8}, r"adapter.rank: 4, but 8 in adapter.init .*; leave it out or give 8"),
        ({"lora_alpha": 16}, r"adapter.alpha: 8.0, but 16.0 in"),
        ({"use_rslora": True}, r"adapter.rslora: False, but True in"),
        ({"use_dora": True}, r"use_dora True is not supported"),
    ],
)
def test_an_adapter_of_another_kind_is_refused_with_the_mend(fields, text, exported, bank):
    _, _, directory = exported()
    _edit_config(directory, **fields)
    with pytest.raises(ConfigError, match=text):
        _import(bank, directory)


def test_an_adapter_of_other_projections_is_refused(exported, bank):
    _, _, directory = exported(AdapterConfig(rank=4, alpha=8, target_modules=("q_proj", "k_proj")))
    with pytest.raises(
        ConfigError, match=r"adapter.target_modules: 'all-linear' covers model.layers.* \(10 such\), which it lacks"
    ):
        _import(bank, directory)
    with pytest.raises(
        ConfigError,
        match=r"leaves out .*k_proj \(2 such\), which it holds.*; leave it out, its projections are q_proj, k_proj",
    ):
        _import(bank, directory, AdapterConfig(rank=4, alpha=8, target_modules=("q_proj",)))


def test_a_missing_directory_and_a_bin_file_are_refused(tmp_path, exported, bank):
    with pytest.raises(DataError, match=r"adapter_config.json: cannot be read"):
        _import(bank, tmp_path / "nowhere")
    _, _, directory = exported()
    (directory / "adapter_model.safetensors").rename(directory / "adapter_model.bin")
    with pytest.raises(DataError, match=r"adapter_model.safetensors: cannot be read"):
        _import(bank, directory)


def test_damaged_files_are_refused_by_name(exported, bank):
    _, _, directory = exported()
    weights = directory / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    with pytest.raises(DataError, match=r"adapter_model.safetensors: not a whole"):
        _import(bank, directory)
    tensors = safetensors.torch.load(whole)
    tensors[min(tensors)][0, 0] = torch.nan
    weights.write_bytes(safetensors.torch.save(tensors))
    with pytest.raises(DataError, match="not finite"):
        _import(bank, directory)
    weights.write_bytes(safetensors.torch.save({}))
    with pytest.raises(DataError, match="no tensors"):
        _import(bank, directory)
    (directory / "adapter_config.json").write_text("{")
    with pytest.raises(DataError, match=r"adapter_config.json: not JSON"):
        _import(bank, directory)


def test_a_tensor_of_another_shape_is_refused(exported, bank):
    _, _, directory = exported()
    weights = directory / "adapter_model.safetensors"
    tensors = safetensors.torch.load_file(weights)
    tensors[min(tensors)] = torch.zeros(4, 3)
    weights.write_bytes(safetensors.torch.save(tensors))
    with pytest.raises(DataError, match="must be"):
        _import(bank, directory)
