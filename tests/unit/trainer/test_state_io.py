import json
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from lora_rl.errors import DataError
from lora_rl.trainer.adapter import Clock, Lora
from lora_rl.trainer.state_io import METADATA_KEY, MOMENTS, TrainState, decode_state, encode_state

MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj", "model.layers.0.mlp.down_proj")


def _state(*, shared_a: bool = False) -> TrainState:
    lora = Lora(modules=MODULES, rank=2, scaling=0.5, dropout=0.1, shared_a=shared_a)
    draw = torch.Generator().manual_seed(0)
    tensors = [
        {name: torch.randn((2, 8) if "lora_A" in name else (8, 2), generator=draw) for name in lora.tensors}
        for _ in range(3)
    ]
    moments = dict(zip(MOMENTS, tensors[1:], strict=True))
    clock = Clock(steps=3, samples=24, skipped_in_a_row=1)
    return TrainState(lora=lora, clock=clock, seed=7, base="f" * 64, weights=tensors[0], moments=moments)


def _changed(change) -> bytes:
    """The blob after `change` of its tensors."""
    data = encode_state(_state())
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    tensors = safetensors.torch.load(data)
    change(tensors)
    return safetensors.torch.save(tensors, metadata=metadata)


@pytest.mark.parametrize("shared_a", [False, True])
def test_a_state_comes_back_exactly(shared_a):
    state = _state(shared_a=shared_a)
    found = decode_state(encode_state(state), "x")
    assert replace(found, weights={}, moments={}) == replace(state, weights={}, moments={})
    for ours, theirs in ((state.weights, found.weights), *((state.moments[m], found.moments[m]) for m in MOMENTS)):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_same_state_gives_the_same_bytes_in_any_order_of_its_tensors():
    state = _state()
    turned = replace(state, weights=dict(reversed(state.weights.items())))
    assert encode_state(state) == encode_state(turned)


def test_the_header_has_one_metadata_key():
    data = encode_state(_state())
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert list(header["__metadata__"]) == [METADATA_KEY]


@pytest.mark.parametrize("data", [b"", b"not a state", b"\xff" * 100])
def test_bytes_that_are_no_state_are_refused_by_name(data):
    with pytest.raises(DataError, match="cas/state/1"):
        decode_state(data, "cas/state/1")


@pytest.mark.parametrize("keep", [9, 200, -1])
def test_a_state_that_is_cut_short_is_refused(keep):
    with pytest.raises(DataError, match="cas/state/1"):
        decode_state(encode_state(_state())[:keep], "cas/state/1")


@pytest.mark.parametrize("part", ["weights", *MOMENTS])
def test_a_missing_tensor_is_refused_by_name(part):
    name = f"{part}/{MODULES[2]}.lora_B.weight"
    with pytest.raises(DataError, match=f"{name} is missing"):
        decode_state(_changed(lambda tensors: tensors.pop(name)), "x")


@pytest.mark.parametrize("part", ["weights", *MOMENTS])
def test_a_value_that_is_not_finite_is_refused_by_name(part):
    name = f"{part}/{MODULES[0]}.lora_A.weight"
    with pytest.raises(DataError, match=f"{name}.*not finite"):
        decode_state(_changed(lambda tensors: tensors[name].fill_(torch.nan)), "x")


def test_a_moment_of_another_shape_is_refused():
    name = f"exp_avg/{MODULES[0]}.lora_A.weight"
    with pytest.raises(DataError, match="shape"):
        decode_state(_changed(lambda tensors: tensors.update({name: torch.zeros(2, 9)})), "x")


def test_a_tensor_too_many_is_refused():
    with pytest.raises(DataError, match="holds 19 tensors"):
        decode_state(_changed(lambda tensors: tensors.update({"weights/other": torch.zeros(1)})), "x")


def test_a_state_of_another_format_is_refused():
    tensors = safetensors.torch.load(encode_state(_state()))
    data = safetensors.torch.save(tensors, metadata={METADATA_KEY: json.dumps({"format": 99})})
    with pytest.raises(DataError, match="format 99"):
        decode_state(data, "x")
