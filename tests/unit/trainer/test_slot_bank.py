import pytest
import torch

from lora_rl.trainer.adapter import Lora
from lora_rl.trainer.lora_rows import Span
from tests.oracle import base_model, logits, peft_from_weights
from tests.tolerances import EXACT, PARITY
from tests.unit.trainer.forward import all_linear, random_weights, sequence_logits

TOKENS = [3, 44, 500, 7, 7, 120]


def test_fresh_weights_are_peft_s_start(bank):
    lora = all_linear(bank)
    weights = bank.fresh_weights(lora, seed=1)
    for name, weight in weights.items():
        if "lora_B" in name:
            assert not weight.any()
        else:
            bound = weight.shape[1] ** -0.5
            assert 0.9 * bound < weight.abs().max() <= bound
            assert abs(weight.mean()) < 0.1 * bound


def test_fresh_weights_follow_from_seed_and_name_not_from_the_other_projections(bank):
    whole, again, other = (bank.fresh_weights(all_linear(bank), seed) for seed in (1, 1, 2))
    name = "model.layers.1.mlp.up_proj.lora_A.weight"
    alone = bank.fresh_weights(Lora(modules=("model.layers.1.mlp.up_proj",), rank=4, scaling=2.0), seed=1)
    assert torch.equal(whole[name], again[name])
    assert torch.equal(whole[name], alone[name])
    assert not torch.equal(whole[name], other[name])


def test_logits_with_an_adapter_are_those_of_peft(model, bank, tiny_qwen3):
    lora = all_linear(bank)
    weights = random_weights(bank, lora)
    bank.fill(2, lora, weights)
    reference = peft_from_weights(tiny_qwen3, weights, rank=lora.rank, alpha=lora.scaling * lora.rank).eval()
    ours = sequence_logits(model, bank, TOKENS, slot=2)
    assert (ours - logits(reference, TOKENS)).abs().max() < PARITY
    assert (ours - sequence_logits(model, bank, TOKENS)).abs().max() > 0.1


def test_an_adapter_of_some_projections_is_that_of_peft(model, bank, tiny_qwen3):
    lora = Lora(
        modules=tuple(m for m in all_linear(bank).modules if m.endswith(("k_proj", "up_proj"))), rank=4, scaling=0.5
    )
    weights = random_weights(bank, lora)
    bank.fill(0, lora, weights)
    reference = peft_from_weights(tiny_qwen3, weights, rank=4, alpha=2.0).eval()
    assert (sequence_logits(model, bank, TOKENS, slot=0) - logits(reference, TOKENS)).abs().max() < PARITY


def test_rows_of_another_slot_and_of_none_are_the_base_s(model, bank, tiny_qwen3):
    bank.fill(0, all_linear(bank), random_weights(bank, all_linear(bank)))
    base = logits(base_model(tiny_qwen3), TOKENS)
    assert (sequence_logits(model, bank, TOKENS) - base).abs().max() < PARITY
    assert (sequence_logits(model, bank, TOKENS, slot=1) - base).abs().max() < PARITY


@torch.no_grad()
@pytest.mark.parametrize("module", ["model.layers.0.self_attn.v_proj", "model.layers.1.mlp.down_proj"])
def test_dropout_keeps_the_expected_output(bank, module):
    lora = all_linear(bank, dropout=0.5)
    bank.fill(0, lora, random_weights(bank, lora))
    layer = bank._layers[module]
    x = torch.randn(5, 1, bank.shape(module)[0], generator=torch.Generator().manual_seed(0))
    outputs = {}
    for seed in (None, *range(400)):
        with bank.routed((Span(slot=0, start=0, stop=5, dropout_seed=None if seed is None else str(seed)),)):
            outputs[seed] = layer(x)[0] - layer.base(x)[0]
    plain, first = outputs.pop(None), outputs[0]
    mean = torch.stack(list(outputs.values())).mean(0)
    assert ((first - plain).norm() / plain.norm()).item() > 0.3
    assert ((mean - plain).norm() / plain.norm()).item() < 0.15


def test_a_cleared_slot_leaves_nothing(model, bank):
    before = sequence_logits(model, bank, TOKENS, slot=0)
    bank.fill(0, all_linear(bank), random_weights(bank, all_linear(bank)))
    bank.clear(0)
    assert (sequence_logits(model, bank, TOKENS, slot=0) - before).abs().max() == EXACT


def test_what_is_multiplied_follows_the_parameters_at_each_refresh(model, bank):
    lora = all_linear(bank, rank=3)
    parameters = bank.fill(0, lora, random_weights(bank, lora))
    for seed in (1, 2):
        weights = random_weights(bank, lora, seed)
        for parameter in parameters:
            parameter.value.data.copy_(weights[parameter.name])
        bank.refresh(0)
        bank.fill(1, lora, weights)
        refreshed, filled = (sequence_logits(model, bank, TOKENS, slot=slot) for slot in (0, 1))
        assert (refreshed - filled).abs().max() == EXACT


def test_parameters_are_copies_of_the_weights_given(bank):
    lora = all_linear(bank)
    weights = random_weights(bank, lora)
    parameters = bank.fill(0, lora, weights)
    assert [parameter.name for parameter in parameters] == lora.tensors
    first = parameters[0]
    first.value.data.zero_()
    assert weights[first.name].any()
    assert not bank.gathered(first.value, first.split_dim).any()


def test_shapes_are_those_of_the_base_s_weights(bank, tiny_qwen3):
    plain = base_model(tiny_qwen3).state_dict()
    for module in all_linear(bank).modules:
        assert bank.shape(module) == tuple(reversed(plain[f"{module}.weight"].shape))


def test_spans_are_gone_after_a_fault_inside(model, bank):
    bank.fill(0, all_linear(bank), random_weights(bank, all_linear(bank)))
    try:
        with bank.routed((Span(slot=0, start=0, stop=6),)):
            raise KeyError
    except KeyError:
        pass
    assert (sequence_logits(model, bank, TOKENS) - sequence_logits(model, bank, TOKENS, slot=5)).abs().max() == EXACT
