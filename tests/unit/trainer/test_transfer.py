import pytest
import torch

from lora_rl.trainer.transfer import on_device


@pytest.mark.parametrize("values", [[3, 151_935, 0], [0.1, -2.5, float("-inf")], []])
def test_a_list_becomes_what_torch_makes_of_it(values):
    tensor = on_device(values, torch.device("cpu"))
    assert torch.equal(tensor, torch.tensor(values))
    assert tensor.dtype == torch.tensor(values).dtype
