import pytest
import safetensors.torch
import torch

from lora_rl.trainer.tensor_bytes import encode_tensors

TENSORS = {"b": torch.arange(6.0).view(2, 3), "a": torch.tensor(1.5), "ü": torch.zeros(0, 4), "c": torch.randn(5, 3).T}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_bytes_are_those_of_the_library(dtype):
    tensors = {name: tensor.to(dtype) for name, tensor in TENSORS.items()}
    metadata = {"key": '{"ä": "quoted"}'}
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    assert encode_tensors(tensors, metadata) == safetensors.torch.save(contiguous, metadata=metadata)


def test_tensors_of_two_types_are_refused():
    with pytest.raises(ValueError, match=r"torch\.float16, torch\.float32"):
        encode_tensors({"a": torch.zeros(1), "b": torch.zeros(1, dtype=torch.float16)}, {})


def test_two_names_may_share_memory():
    tensor = torch.arange(4.0)
    found = safetensors.torch.load(encode_tensors({"a": tensor, "b": tensor}, {}))
    assert torch.equal(found["a"], tensor)
    assert torch.equal(found["b"], tensor)


def test_the_order_of_the_tensors_does_not_matter():
    assert encode_tensors(TENSORS, {}) == encode_tensors(dict(reversed(TENSORS.items())), {})


def test_no_tensors_are_a_file_too():
    assert safetensors.torch.load(encode_tensors({}, {})) == {}
