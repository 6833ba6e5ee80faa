"""Every supported family trains as transformers and PEFT do: loss and gradients of attention and dense layers."""

from typing import Any

import pytest

from lora_rl.config import AdapterConfig, AlgorithmConfig, SamplingConfig
from lora_rl.models.tiny import make_tiny_llama, make_tiny_qwen2, make_tiny_qwen3, make_tiny_qwen3_moe
from lora_rl.trainer.adapter import lora_of
from lora_rl.trainer.learner import Job, Learner
from lora_rl.trainer.model import build_model
from lora_rl.trainer.slot_bank import SlotBank
from tests.builders import make_training_samples
from tests.oracle import grpo_loss, lora_parameters, peft_from_weights
from tests.tolerances import PARITY
from tests.unit.trainer.forward import random_weights

MAKERS = {
    "qwen3": make_tiny_qwen3,
    "qwen3_moe": make_tiny_qwen3_moe,
    "qwen2": make_tiny_qwen2,
    "llama": make_tiny_llama,
}
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", MAKERS)
def test_gradients_and_loss_are_those_of_transformers_and_peft(family, tied, tmp_path, device):
    path = MAKERS[family](tmp_path / "model", tie_embeddings=tied)
    model = build_model(path, dtype="float32", device=device)
    bank = SlotBank(model)
    adapter = AdapterConfig(rank=4, alpha=8, target_modules=ATTENTION if model.sparse else "all-linear")
    lora = lora_of(adapter, 2, sparse=model.sparse)
    weights = random_weights(bank, lora)
    parameters = bank.fill(0, lora, weights)
    samples = make_training_samples(prompts=2)
    job = Job(slot=0, samples=samples, algorithm=AlgorithmConfig(), sampling=SamplingConfig())
    metrics = Learner(model, bank, max_tokens=4096).forward_backward([job])[0]
    reference = peft_from_weights(path, weights, rank=4, alpha=8)
    loss = grpo_loss(reference, samples)
    loss.backward()
    assert abs(metrics["loss/total"] - loss.item()) < PARITY
    theirs: dict[str, Any] = {name: parameter.grad for name, parameter in lora_parameters(reference).items()}
    assert theirs.keys() == {parameter.name for parameter in parameters}
    assert min(gradient.abs().max() for gradient in theirs.values()) > 0
    for parameter in parameters:
        gradient: Any = parameter.value.grad
        assert (gradient - theirs[parameter.name]).abs().max() < PARITY, parameter.name
