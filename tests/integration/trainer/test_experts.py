"""A model with experts on several ranks: as on one, whatever the layout."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.integration.trainer.workplace import Workplace
from tests.tolerances import PARITY

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

LAYOUTS = {
    "tp2": {"tp": 2},
    "pp2": {"pp": 2},
    "dp2": {"dp": 2},
    "ep2": {"dp": 2, "ep": 2},
    "tp2ep2": {"tp": 2, "dp": 2, "ep": 2},
    "pp2ep2": {"pp": 2, "dp": 2, "ep": 2},
    "dp4ep2": {"dp": 4, "ep": 2},
}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workplace]:
    place = Workplace(tmp_path_factory.mktemp("experts"))
    try:
        yield place
    finally:
        place.end()


def _train(workplace: Workplace, **options: Any) -> dict[str, Any]:
    """What all ranks reply alike, with the gradients of all stages and experts."""
    replies = workplace.train(family="qwen3_moe", **options)
    gradients: dict[str, Any] = {}
    for reply in replies:
        gradients |= reply.pop("gradients")
    assert all(reply == replies[0] for reply in replies)
    return replies[0] | {"gradients": gradients}


def _gap(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    assert ours.keys() == theirs.keys()
    return max((torch.as_tensor(ours[name]) - torch.as_tensor(theirs[name])).abs().max().item() for name in ours)


@pytest.fixture(scope="module")
def one(workplace: Workplace) -> dict[str, Any]:
    """Three steps on one rank."""
    return _train(workplace)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_layout_has_the_outputs_gradients_and_weights_of_one_rank(workplace, one, layout):
    split = _train(workplace, **layout)
    assert split["states"][0] == one["states"][0]
    assert all(split["stepped"])
    for ours, theirs in zip(split["metrics"], one["metrics"], strict=True):
        for name in ("loss/total", "policy/entropy/mean", "mismatch/logp_abs/mean", "policy/grad_norm"):
            assert ours[name] == pytest.approx(theirs[name], abs=PARITY), name
    assert max(torch.tensor(gradient).abs().max().item() for gradient in one["gradients"].values()) > 0.01
    assert _gap(split["gradients"], one["gradients"]) < PARITY
    assert _gap(workplace.weights(split, 1), workplace.weights(one, 1)) < PARITY * 10


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_state_passes_through_a_layout_byte_by_byte(workplace, one, layout):
    split = _train(workplace, start=one["states"][-1], steps=workplace.batches[:1], **layout)
    assert split["saved"] == one["states"][-1]
    alone = _train(workplace, start=split["states"][-1], steps=workplace.batches[:1])
    assert alone["saved"] == split["states"][-1]


def test_recompute_is_the_same_where_experts_are_shared(workplace):
    options = {"recompute": True, "steps": workplace.batches[:1]}
    one, split = _train(workplace, **options), _train(workplace, dp=2, ep=2, **options)
    assert _gap(split["gradients"], one["gradients"]) < PARITY


@pytest.mark.parametrize(
    "adapter",
    [
        {"target_modules": ["*.layers.1.mlp.experts.*"]},
        {"target_modules": ["*.layers.0.mlp.experts.*"]},
        {"target_modules": ["self_attn.*"]},
        {"type": "lora"},
    ],
    ids=["second layer", "first layer", "attention", "shared A"],
)
def test_any_adapter_trains_where_experts_are_shared(workplace, adapter):
    options = {"adapter": adapter, "steps": workplace.batches[:1]}
    one, split = _train(workplace, **options), _train(workplace, dp=2, ep=2, **options)
    assert _gap(split["gradients"], one["gradients"]) < PARITY
