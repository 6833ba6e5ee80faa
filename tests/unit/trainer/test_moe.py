"""Sparse layers: routing, what is refused, and that a row's experts do not hang on the rows beside it."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from lora_rl.config import TrainerConfig
from lora_rl.errors import TrainerError
from lora_rl.models.tiny import make_tiny_qwen3_moe
from lora_rl.trainer.lora_rows import Span
from lora_rl.trainer.model import build_model
from lora_rl.trainer.moe import row_slots
from lora_rl.trainer.slot_bank import SlotBank
from tests.oracle import base_model, logits
from tests.tolerances import PARITY
from tests.unit.trainer.forward import sequence_logits

TOKENS = [3, 44, 500, 7, 7, 120, 9]


def _edited(path, tmp_path, **fields):
    copy = shutil.copytree(path, tmp_path / "edited")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | fields))
    return copy


def test_weights_of_the_chosen_experts_need_not_add_to_one(tmp_path, device):
    path = make_tiny_qwen3_moe(tmp_path / "model", norm_topk_prob=False)
    other = _edited(path, tmp_path, norm_topk_prob=True)
    model = build_model(path, dtype="float32", device=device)
    ours = sequence_logits(model, SlotBank(model), TOKENS)
    assert (ours - logits(base_model(path), TOKENS)).abs().max() < PARITY
    assert (ours - logits(base_model(other), TOKENS)).abs().max() > PARITY


def test_every_expert_is_loaded_frozen(moe_model):
    for layer in moe_model.gpt.decoder.layers:
        assert layer.mlp.experts.fc1.weight.shape == (8, 64, 64)
        assert layer.mlp.experts.fc2.weight.shape == (8, 64, 32)
    assert not any(parameter.requires_grad for parameter in moe_model.gpt.parameters())


@pytest.mark.parametrize("fields", [{"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}])
def test_a_model_with_dense_layers_among_sparse_ones_is_refused(fields, tiny_qwen3_moe, tmp_path, device):
    with pytest.raises(TrainerError, match="make some layers dense, which is not supported"):
        build_model(_edited(tiny_qwen3_moe, tmp_path, **fields), dtype="float32", device=device)


def test_a_single_expert_a_row_is_refused(tiny_qwen3_moe, tmp_path, device):
    with pytest.raises(TrainerError, match="num_experts_per_tok 1 is not within 2 and num_experts 8"):
        build_model(_edited(tiny_qwen3_moe, tmp_path, num_experts_per_tok=1), dtype="float32", device=device)


def test_experts_that_tensor_parallelism_does_not_divide_are_refused(tiny_qwen3_moe, tmp_path, device):
    path = _edited(tiny_qwen3_moe, tmp_path, moe_intermediate_size=33)
    with pytest.raises(TrainerError, match=r"trainer.tensor_parallel: 2 does not divide moe_intermediate_size 33"):
        build_model(path, dtype="float32", device=device, trainer=TrainerConfig(tensor_parallel=2))


def test_a_missing_expert_is_refused_by_name(tiny_qwen3_moe, tmp_path, device):
    path = shutil.copytree(tiny_qwen3_moe, tmp_path / "model")
    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.5.up_proj.weight"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainerError, match=r"layers\.1\.mlp\.experts\.5\.up_proj"):
        build_model(path, dtype="float32", device=device)


def test_an_expert_that_is_not_finite_is_refused_by_name(tiny_qwen3_moe, tmp_path, device):
    path = shutil.copytree(tiny_qwen3_moe, tmp_path / "model")
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.0.mlp.experts.5.down_proj.weight"][0, 0] = torch.nan
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainerError, match=r"layers\.0\.mlp\.experts\.fc2"):
        build_model(path, dtype="float32", device=device)


def test_rows_belong_to_the_slot_of_their_span():
    spans = (Span(slot=3, start=0, stop=2), Span(slot=5, start=2, stop=3))
    slots, slot_T = row_slots(spans, 3, torch.device("cpu"))
    assert [slots[place] for place in slot_T] == [3, 3, 5]
