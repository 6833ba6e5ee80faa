import json
from pathlib import Path

import fsspec
import pytest
import safetensors.torch
import torch

from lora_rl.errors import ConfigError, DataError
from lora_rl.trainer.peft_config import read_peft
from tests.builders import make_peft_directory


def _names(*patterns: str, layers: int = 2) -> list[str]:
    return [f"model.layers.{layer}.{pattern}" for layer in range(layers) for pattern in patterns]


def _change_tensors(directory: Path, change) -> None:
    path = directory / "adapter_model.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    path.write_bytes(safetensors.torch.save(tensors))


def test_rank_alpha_scaling_and_projections_are_read(tmp_path):
    found = read_peft(str(make_peft_directory(tmp_path, r=3, lora_alpha=7, use_rslora=True)))
    assert (found.rank, found.alpha, found.rslora, found.num_layers) == (3, 7.0, True, 2)
    assert found.modules == tuple(_names("self_attn.q_proj", "mlp.down_proj"))


@pytest.mark.parametrize("given", [["down_proj", "q_proj"], ["q_proj", "down_proj", "lm_head"], "all-linear"])
def test_short_names_that_hold_in_every_layer_are_kept(given, tmp_path):
    found = read_peft(str(make_peft_directory(tmp_path, target_modules=given)))
    assert found.target_modules == ("q_proj", "down_proj")


@pytest.mark.parametrize("given", [r".*\\.(q_proj|down_proj)", None, ["model.layers.0.self_attn.q_proj"]])
def test_other_targets_are_the_projections_that_are_there(given, tmp_path):
    found = read_peft(str(make_peft_directory(tmp_path, target_modules=given)))
    assert found.target_modules == found.modules


def test_short_names_that_hold_in_some_layers_become_full_names(tmp_path):
    modules = ["model.layers.1.self_attn.q_proj"]
    found = read_peft(str(make_peft_directory(tmp_path, modules, target_modules=["q_proj"], layers_to_transform=[1])))
    assert found.target_modules == tuple(modules)
    assert found.num_layers == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"peft_type": "IA3"},
        {"bias": "all"},
        {"use_dora": True},
        {"modules_to_save": ["lm_head"]},
        {"rank_pattern": {"q_proj": 8}},
        {"alpha_pattern": {"q_proj": 8}},
        {"fan_in_fan_out": True},
        {"init_lora_weights": "pissa"},
        {"r": 0},
        {"r": 2.5},
        {"lora_alpha": "many"},
    ],
)
def test_what_is_not_plain_lora_is_refused_by_name(fields, tmp_path):
    directory = make_peft_directory(tmp_path, **fields)
    ((field, value),) = fields.items()
    with pytest.raises(ConfigError) as caught:
        read_peft(str(directory))
    assert str(caught.value).startswith(f"adapter.init: {directory}: {field} {value!r}")
    assert ";" in str(caught.value)


def test_every_fault_is_named_at_once(tmp_path):
    directory = make_peft_directory(tmp_path, use_dora=True, bias="all")
    _change_tensors(
        directory,
        lambda tensors: tensors.update(
            {
                "base_model.model.lm_head.lora_A.weight": torch.zeros(2, 4),
                "base_model.model.model.norm.weight": torch.ones(4),
            }
        ),
    )
    with pytest.raises(ConfigError) as caught:
        read_peft(str(directory))
    bias, dora, unknown = str(caught.value).splitlines()
    assert ("bias 'all'" in bias, "use_dora True" in dora) == (True, True)
    assert "holds tensor lm_head.lora_A.weight (2 such)" in unknown


def test_what_peft_s_newer_fields_leave_off_is_taken(tmp_path):
    read_peft(
        str(make_peft_directory(tmp_path, layers_pattern=None, arrow_config=None, loftq_config={}, eva_config=None))
    )


@pytest.mark.parametrize(("modules", "width"), [(["model.layers.0.mlp.down_proj"], None), (None, 96)])
def test_the_width_of_its_base_is_that_of_what_reads_the_residual_stream(tmp_path, modules, width):
    assert read_peft(str(make_peft_directory(tmp_path, modules, width=96))).width == width


def test_a_missing_half_is_named(tmp_path):
    directory = make_peft_directory(tmp_path)
    name = "model.layers.1.mlp.down_proj.lora_B.weight"
    _change_tensors(directory, lambda tensors: tensors.pop(f"base_model.model.{name}"))
    with pytest.raises(ConfigError, match=f"lacks tensor {name}"):
        read_peft(str(directory))


def test_a_uri_is_read_as_a_directory_is(tmp_path):
    directory = make_peft_directory(tmp_path)
    memory = fsspec.filesystem("memory")
    for file in directory.iterdir():
        memory.pipe_file(f"/adapters/mine/{file.name}", file.read_bytes())
    assert read_peft("memory://adapters/mine/").modules == read_peft(directory.as_uri()).modules


@pytest.mark.parametrize("uri", ["nowhere", "unknownscheme://bucket/adapter"])
def test_what_cannot_be_read_is_named(uri):
    with pytest.raises(DataError, match=rf"^adapter.init: {uri}/adapter_config.json: cannot be read .*give a PEFT"):
        read_peft(uri)


def test_weights_in_another_format_are_not_read(tmp_path):
    directory = make_peft_directory(tmp_path)
    (directory / "adapter_model.safetensors").rename(directory / "adapter_model.bin")
    with pytest.raises(DataError, match=r"^adapter.init: .*adapter_model.safetensors: cannot be read"):
        read_peft(str(directory))


def test_damaged_files_are_named(tmp_path):
    directory = make_peft_directory(tmp_path)
    weights = directory / "adapter_model.safetensors"
    for data in (b"", weights.read_bytes()[:50], b"\xff" * 64):
        weights.write_bytes(data)
        with pytest.raises(DataError, match="not a whole safetensors"):
            read_peft(str(directory))
    (directory / "adapter_config.json").write_text(json.dumps([]))
    with pytest.raises(DataError, match=r"adapter_config.json: holds list"):
        read_peft(str(directory))
