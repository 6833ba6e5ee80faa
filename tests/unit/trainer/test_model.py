import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lora_rl.config import TrainerConfig
from lora_rl.errors import TrainerError
from lora_rl.models.tiny import make_tiny_llama, make_tiny_qwen2, make_tiny_qwen3, make_tiny_qwen3_moe
from lora_rl.trainer.model import build_model, weights_fingerprint
from lora_rl.trainer.packing import pack
from tests.builders import make_training_samples
from tests.oracle import base_model, logits
from tests.tolerances import PARITY

MAKERS = {
    "qwen3": make_tiny_qwen3,
    "qwen3_moe": make_tiny_qwen3_moe,
    "qwen2": make_tiny_qwen2,
    "llama": make_tiny_llama,
}


def _build(path: Path, device: torch.device, **options):
    return build_model(path, dtype="float32", device=device, **options)


def _edited(tiny_qwen3: Path, tmp_path: Path, **fields) -> Path:
    """A copy of the model with other fields in its config."""
    path = shutil.copytree(tiny_qwen3, tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | fields))
    return path


@torch.no_grad()
def _largest_error(path: Path, device: torch.device) -> float:
    """Of the logits of packed samples that share prompts, against transformers on each sequence alone."""
    model, reference = _build(path, device), base_model(path)
    samples = make_training_samples(longest=40)
    (batch,) = pack({0: dict(enumerate(samples))}, max_tokens=4096, device=device, dtype=torch.float32)
    hidden_TD = model.hidden_TD(batch.tokens_T, batch.positions_T, batch.layout)
    ours_NV = hidden_TD[batch.rows_N] @ model.head_VD.T
    errors = []
    for piece in batch.pieces:
        sample = samples[piece.sample]
        first = len(sample.prompt_tokens) - 1
        theirs = logits(reference, [*sample.prompt_tokens, *sample.response_tokens[:-1]])[first:]
        errors.append((ours_NV[piece.tokens] - theirs).abs().max().item())
    return max(errors)


@pytest.mark.parametrize("family", MAKERS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_packed_logits_are_those_of_transformers(family, tied, tmp_path, device):
    path = MAKERS[family](tmp_path / "model", tie_embeddings=tied)
    assert _largest_error(path, device) < PARITY


def test_llama3_rope_scaling_is_that_of_transformers(tmp_path, device):
    path = make_tiny_llama(tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    config["rope_parameters"] = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    (path / "config.json").write_text(json.dumps(config))
    assert _largest_error(path, device) < PARITY


def test_every_weight_is_frozen(model):
    assert not any(parameter.requires_grad for parameter in model.gpt.parameters())


def test_an_unknown_architecture_is_refused_with_the_supported_ones(tiny_qwen3, tmp_path, device):
    path = _edited(tiny_qwen3, tmp_path, architectures=["GPT2LMHeadModel"], model_type="gpt2")
    with pytest.raises(TrainerError, match=r"GPT2LMHeadModel is not supported; use one of Qwen3ForCausalLM.*Llama"):
        _build(path, device)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}}, "rope_type yarn"),
    ],
)
def test_what_megatron_would_leave_out_is_refused(fields, text, tiny_qwen3, tmp_path, device):
    with pytest.raises(TrainerError, match=text):
        _build(_edited(tiny_qwen3, tmp_path, **fields), device)


def test_sizes_that_do_not_divide_are_refused_at_once(tiny_qwen3, device):
    with pytest.raises(TrainerError, match=r"tensor_parallel: 4 does not divide num_key_value_heads 2; use 1 or 2"):
        _build(tiny_qwen3, device, trainer=TrainerConfig(tensor_parallel=4))


def test_a_missing_weight_is_refused_by_name(tiny_qwen3, tmp_path, device):
    path = shutil.copytree(tiny_qwen3, tmp_path / "model")
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.input_layernorm.weight"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainerError, match=r"layernorm"):
        _build(path, device)


def test_a_weight_that_is_not_finite_is_refused_by_name(tiny_qwen3, tmp_path, device):
    path = shutil.copytree(tiny_qwen3, tmp_path / "model")
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][0, 0] = torch.nan
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainerError, match=r"layers\.1\.mlp\.linear_fc2"):
        _build(path, device)


def test_a_directory_without_a_model_is_refused(tmp_path, device):
    with pytest.raises(TrainerError, match="no model config"):
        _build(tmp_path, device)


def test_the_fingerprint_follows_the_weights(tiny_qwen3, tmp_path):
    other = make_tiny_qwen3(tmp_path / "other", seed=1)
    again = shutil.copytree(tiny_qwen3, tmp_path / "again")
    assert weights_fingerprint(again) == weights_fingerprint(tiny_qwen3) != weights_fingerprint(other)
