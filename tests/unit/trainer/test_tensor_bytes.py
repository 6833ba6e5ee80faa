import json

import pytest
import safetensors.torch
import torch

from lora_rl.trainer.tensor_bytes import encode_tensors

TENSORS = {"b": torch.arange(6.0).view(2, 3), "a": torch.tensor(1.5), "ü": torch.zeros(0, 4), "c": torch.randn(5, 3).T}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_library_reads_what_is_written(dtype):
    tensors = {name: tensor.to(dtype) for name, tensor in TENSORS.items()}
    data = encode_tensors(tensors, {"key": 'a "quoted" text'})
    found = safetensors.torch.load(data)
    assert found.keys() == tensors.keys()
    assert all(found[name].dtype == dtype and torch.equal(found[name], tensors[name]) for name in tensors)
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    assert json.loads(data[8 : 8 + length])["__metadata__"] == {"key": 'a "quoted" text'}


def test_two_names_may_share_memory():
    tensor = torch.arange(4.0)
    found = safetensors.torch.load(encode_tensors({"a": tensor, "b": tensor}, {}))
    assert torch.equal(found["a"], tensor)
    assert torch.equal(found["b"], tensor)


def test_the_order_of_the_tensors_does_not_matter():
    assert encode_tensors(TENSORS, {}) == encode_tensors(dict(reversed(TENSORS.items())), {})


def test_no_tensors_are_a_file_too():
    assert safetensors.torch.load(encode_tensors({}, {})) == {}
