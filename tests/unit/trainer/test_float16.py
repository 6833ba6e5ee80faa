"""A model in float16: what it loses against float32, beside bfloat16."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lora_rl.config import AlgorithmConfig, SamplingConfig
from lora_rl.trainer.learner import Job, Learner
from lora_rl.trainer.model import FrozenModel, build_model
from lora_rl.trainer.slot_bank import SlotBank
from tests.builders import make_training_samples
from tests.tolerances import EXACT, FLOAT16_GRADIENT
from tests.unit.trainer.forward import all_linear, random_weights, sequence_logits

LONGEST_ANSWER = 10_000_000
"""Under `aggregation: constant` each token then weighs 1e-8, a sixth of what float16 can tell from zero."""


@pytest.fixture(scope="module")
def half_model(tiny_qwen3: Path, device: torch.device) -> FrozenModel:
    return build_model(tiny_qwen3, dtype="float16", device=device)


@pytest.fixture(scope="module")
def half_bank(half_model: FrozenModel) -> SlotBank:
    return SlotBank(half_model)


def gradients(
    model: FrozenModel, bank: SlotBank, algorithm: AlgorithmConfig, longest: Sequence[int] = (LONGEST_ANSWER,)
) -> list[Tensor]:
    """Of each slot's adapter one vector, by the longest answer that is allowed in each."""
    lora = all_linear(bank)
    parameters = [bank.fill(slot, lora, random_weights(bank, lora, seed=slot)) for slot in range(len(longest))]
    jobs = [
        Job(
            slot=slot,
            samples=make_training_samples(seed=slot),
            algorithm=algorithm,
            sampling=SamplingConfig(max_response_tokens=tokens),
        )
        for slot, tokens in enumerate(longest)
    ]
    Learner(model, bank, max_tokens=4096).forward_backward(jobs)
    return [torch.cat([parameter.value.grad.flatten() for parameter in own]) for own in parameters]


@pytest.mark.parametrize("aggregation", ["token_mean", "constant"])
def test_gradients_are_those_of_float32_however_little_a_token_weighs(model, bank, half_model, half_bank, aggregation):
    algorithm = AlgorithmConfig(aggregation=aggregation)
    (exact,), (half,) = gradients(model, bank, algorithm), gradients(half_model, half_bank, algorithm)
    assert exact.norm() > 0
    assert (half - exact).norm() / exact.norm() < FLOAT16_GRADIENT


def test_neighbours_with_other_scales_keep_their_own(model, bank, half_model, half_bank):
    algorithm, longest = AlgorithmConfig(aggregation="constant"), (LONGEST_ANSWER, 100)
    (alone,) = gradients(half_model, half_bank, algorithm)
    joint = gradients(half_model, half_bank, algorithm, longest)
    assert (alone - joint[0]).abs().max() == EXACT
    for exact, half in zip(gradients(model, bank, algorithm, longest), joint, strict=True):
        assert (half - exact).norm() / exact.norm() < FLOAT16_GRADIENT


def test_logits_lie_several_times_closer_to_float32_than_in_bfloat16(model, bank, half_model, half_bank, tiny_qwen3):
    coarse_model = build_model(tiny_qwen3, dtype="bfloat16", device=model.device)
    tokens = list(range(3, 60))
    exact = sequence_logits(model, bank, tokens)
    half, coarse = (
        (sequence_logits(each, slots, tokens).float() - exact).abs().mean()
        for each, slots in ((half_model, half_bank), (coarse_model, SlotBank(coarse_model)))
    )
    assert 0 < half < coarse / 5
