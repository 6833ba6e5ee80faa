"""LoRA on experts: as PEFT has it, for many adapters at once, out and in again."""

from typing import Any

import pytest
import torch

from lora_rl.config import AdapterConfig, AlgorithmConfig, OptimizerConfig, SamplingConfig, TrainerConfig
from lora_rl.errors import ConfigError
from lora_rl.trainer.adapter import Clock, Lora, lora_of
from lora_rl.trainer.init_adapter import resolve_init
from lora_rl.trainer.learner import Job, Learner
from lora_rl.trainer.model import build_model
from lora_rl.trainer.peft_io import export_peft, import_peft
from lora_rl.trainer.slot_bank import SlotBank
from lora_rl.trainer.slot_optimizer import SlotOptimizer
from lora_rl.trainer.state_io import MOMENTS, TrainState, decode_state, encode_state
from tests.builders import make_training_samples
from tests.oracle import (
    base_model,
    gradients_with_experts,
    grpo_loss,
    logits,
    peft_from_directory,
    trainable_peft_from_directory,
    write_peft_directory,
)
from tests.tolerances import EXACT, PARITY
from tests.unit.trainer.forward import random_weights, sequence_logits

TOKENS = [3, 44, 500, 7, 7, 120]
ADAPTER = AdapterConfig(rank=4, alpha=8)
EXPERTS_ALONE = AdapterConfig(rank=3, alpha=5.5, target_modules=("*.mlp.experts.*",))
SHARED_A = AdapterConfig(rank=4, alpha=8, type="lora")
KINDS = pytest.mark.parametrize("adapter", [ADAPTER, EXPERTS_ALONE, SHARED_A], ids=["all", "experts", "shared"])


@pytest.fixture
def exported(moe_bank, tmp_path):
    """Writes an adapter of random weights as a PEFT directory; gives what it is, its weights and the directory."""

    def export(adapter: AdapterConfig):
        lora = lora_of(adapter, 2, sparse=True)
        weights = random_weights(moe_bank, lora)
        files = export_peft(lora, adapter, weights, num_layers=2, base_model_name="base")
        return lora, weights, write_peft_directory(tmp_path / "adapter", *files)

    return export


def _job(slot: int, *, seed: int = 0) -> Job:
    samples = make_training_samples(seed=seed)
    return Job(slot=slot, samples=samples, algorithm=AlgorithmConfig(), sampling=SamplingConfig())


def _learner(bank: SlotBank, max_tokens: int = 4096) -> Learner:
    return Learner(bank._model, bank, max_tokens=max_tokens)


def _gap(ours, theirs) -> float:
    assert ours.keys() == theirs.keys()
    return max((ours[name] - theirs[name]).abs().max().item() for name in ours)


def _by_tensor(lora: Lora, gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """PEFT has a copy of a shared A for each projection: its gradient is the sum of theirs."""
    total: dict[str, torch.Tensor] = {}
    for module in lora.modules:
        for letter, name in (("A", lora.name_of_a(module)), ("B", lora.name_of_b(module))):
            gradient = gradients[f"{module}.lora_{letter}.weight"]
            total[name] = total[name] + gradient if name in total else gradient
    return total


def _gradients(bank: SlotBank, learner: Learner, job: Job, adapter: AdapterConfig = ADAPTER) -> dict[str, Any]:
    lora = lora_of(adapter, 2, sparse=True)
    parameters = bank.fill(job.slot, lora, random_weights(bank, lora, seed=job.slot))
    learner.forward_backward([job])
    return {parameter.name: parameter.value.grad for parameter in parameters}


@KINDS
def test_peft_loads_an_export_and_has_the_trainer_s_logits(adapter, exported, moe_model, moe_bank, tiny_qwen3_moe):
    lora, weights, directory = exported(adapter)
    moe_bank.fill(0, lora, weights)
    ours = sequence_logits(moe_model, moe_bank, TOKENS, slot=0)
    assert (ours - logits(peft_from_directory(tiny_qwen3_moe, directory), TOKENS)).abs().max() < PARITY
    assert (ours - logits(base_model(tiny_qwen3_moe), TOKENS)).abs().max() > 0.01


@KINDS
def test_gradients_and_loss_are_those_of_peft(adapter, exported, moe_bank, tiny_qwen3_moe):
    lora, weights, directory = exported(adapter)
    parameters = moe_bank.fill(0, lora, weights)
    job = _job(0)
    metrics = _learner(moe_bank).forward_backward([job])[0]
    reference = trainable_peft_from_directory(tiny_qwen3_moe, directory)
    loss = grpo_loss(reference, job.samples)
    loss.backward()
    assert abs(metrics["loss/total"] - loss.item()) < PARITY
    theirs = gradients_with_experts(reference, adapter.rank)
    experts = [gradient for name, gradient in theirs.items() if ".experts." in name]
    assert len(experts) == 12
    assert min(gradient.abs().max() for gradient in experts) > 0
    assert _gap({parameter.name: parameter.value.grad for parameter in parameters}, _by_tensor(lora, theirs)) < PARITY


@KINDS
def test_import_of_an_export_is_exact(adapter, exported, moe_bank):
    lora, weights, directory = exported(adapter)
    found = import_peft(str(directory), lora, adapter, moe_bank.shapes(lora))
    assert list(found) == list(weights)
    assert _gap(found, weights) == EXACT


def test_a_config_takes_the_experts_from_the_adapter_it_starts_from(exported):
    _, _, directory = exported(EXPERTS_ALONE)
    adapter = resolve_init(AdapterConfig(init=str(directory)))
    assert (adapter.rank, adapter.alpha) == (3, 5.5)
    assert lora_of(adapter, 2, sparse=True).modules == lora_of(EXPERTS_ALONE, 2, sparse=True).modules


def _train(bank: SlotBank, slots: list[int], steps: int = 3) -> dict[int, dict[str, torch.Tensor]]:
    """Weights of each slot after some steps in which all of them train in one packed batch."""
    optimizers = {}
    for slot in slots:
        lora = lora_of(adapter_of(slot), 2, sparse=True)
        weights = random_weights(bank, lora, seed=slot)
        moments = {moment: {name: torch.zeros_like(weight) for name, weight in weights.items()} for moment in MOMENTS}
        config = OptimizerConfig(lr=1e-2 / (slot + 1), weight_decay=0.01)
        parameters = bank.fill(slot, lora, weights)
        optimizers[slot] = SlotOptimizer(parameters, config, Clock(), moments, bank._model.groups)
    for _ in range(steps):
        _learner(bank).forward_backward([_job(slot, seed=slot) for slot in slots])
        assert all(optimizer.step(12).stepped for optimizer in optimizers.values())
    return {
        slot: {parameter.name: parameter.value.detach().clone() for parameter in optimizer.parameters}
        for slot, optimizer in optimizers.items()
    }


def adapter_of(slot: int) -> AdapterConfig:
    """Two that cover everything, of different ranks, and one of yet another that leaves the attention out."""
    return [ADAPTER, EXPERTS_ALONE, AdapterConfig(rank=7, alpha=4)][slot]


def test_adapters_trained_together_are_those_trained_alone(moe_bank):
    joint = _train(moe_bank, [0, 1, 2])
    for slot in (0, 1, 2):
        for other in {0, 1, 2} - {slot}:
            moe_bank.clear(other)
        assert _gap(joint[slot], _train(moe_bank, [slot])[slot]) == EXACT


def test_a_split_into_micro_batches_changes_nothing(moe_bank):
    whole, split = (_gradients(moe_bank, _learner(moe_bank, budget), _job(0)) for budget in (4096, 30))
    assert _gap(whole, split) < PARITY


def test_recompute_gives_the_same_gradients(moe_bank, tiny_qwen3_moe, device):
    plain = _gradients(moe_bank, _learner(moe_bank), _job(0))
    model = build_model(tiny_qwen3_moe, dtype="float32", device=device, trainer=TrainerConfig(recompute=True))
    bank = SlotBank(model)
    assert _gap(plain, _gradients(bank, _learner(bank), _job(0))) == EXACT


def test_fresh_weights_are_peft_s_start_for_each_expert(moe_bank):
    weights = moe_bank.fresh_weights(lora_of(ADAPTER, 2, sparse=True), seed=1)
    a_ERK = weights["model.layers.1.mlp.experts.*.gate_proj.lora_A.weight"]
    assert a_ERK.shape == (8, 4, 64)
    assert 0.9 / 8 < a_ERK.abs().amax((1, 2)).min() <= a_ERK.abs().max() <= 1 / 8
    assert not torch.equal(a_ERK[0], a_ERK[1])
    assert not weights["model.layers.1.mlp.experts.*.gate_proj.lora_B.weight"].any()


def test_a_state_with_experts_comes_back_exactly(moe_bank):
    lora = lora_of(ADAPTER, 2, sparse=True)
    weights, moments = random_weights(moe_bank, lora), {m: random_weights(moe_bank, lora, seed=9) for m in MOMENTS}
    state = TrainState(lora=lora, clock=Clock(steps=2), seed=0, base="b", weights=weights, moments=moments)
    found = decode_state(encode_state(state), "x")
    assert found.lora == lora
    assert _gap(dict(found.weights), weights) == EXACT
    assert _gap(dict(found.moments["exp_avg"]), moments["exp_avg"]) == EXACT
    parameters = moe_bank.fill(0, lora, found.weights)
    assert _gap({p.name: moe_bank.gathered(p.value, p.split_dim) for p in parameters}, weights) == EXACT


def test_an_adapter_of_some_projections_of_experts_is_refused():
    with pytest.raises(ConfigError, match=r"covers gate_proj of .*experts\.\*, but PEFT and vLLM adapt gate_proj, up"):
        lora_of(targeting("q_proj", "gate_proj"), 2, sparse=True)


def test_one_expert_alone_is_refused():
    with pytest.raises(ConfigError, match=r"experts\.3\.gate_proj' matches no projection"):
        lora_of(targeting("*.mlp.experts.3.gate_proj"), 2, sparse=True)


def test_dropout_on_experts_is_refused_and_on_attention_is_not():
    adapter = AdapterConfig(dropout=0.1)
    with pytest.raises(ConfigError, match=r"adapter.dropout: 0.1 is not supported on experts"):
        lora_of(adapter, 2, sparse=True)
    attention = adapter.model_copy(update={"exclude_modules": ("*.mlp.experts.*",)})
    assert len(lora_of(attention, 2, sparse=True).modules) == 8


def targeting(*names: str) -> AdapterConfig:
    return ADAPTER.model_copy(update={"target_modules": names})


def test_rank_stabilised_scaling_is_refused_with_the_alpha_that_means_the_same():
    adapter = AdapterConfig(rank=4, alpha=8, rslora=True)
    with pytest.raises(ConfigError, match=r"set it to false and adapter\.alpha to 16"):
        lora_of(adapter, 2, sparse=True)
    assert AdapterConfig(rank=4, alpha=16).scaling == adapter.scaling
