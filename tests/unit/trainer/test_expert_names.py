import pytest
import torch

from lora_rl.errors import DataError
from lora_rl.trainer.expert_names import stack, unstack
from lora_rl.trainer.targets import stacked_name

NAME = "model.layers.3.mlp.experts.*.up_proj.lora_A.weight"


def test_experts_unstack_to_a_name_each_and_stack_to_the_same():
    whole = torch.arange(24.0).view(12, 2, 1)
    single = unstack(NAME, whole)
    assert list(single)[10] == "model.layers.3.mlp.experts.10.up_proj.lora_A.weight"
    assert torch.equal(single["model.layers.3.mlp.experts.10.up_proj.lora_A.weight"], whole[10])
    assert torch.equal(stack(dict(reversed(single.items())), "x")[NAME], whole)


def test_other_tensors_stay_as_they_are():
    name, tensor = "model.layers.3.mlp.up_proj.lora_A.weight", torch.ones(2, 1)
    assert unstack(name, tensor) == {name: tensor}
    assert stack({name: tensor}, "x") == {name: tensor}
    assert stacked_name(name) == name


def test_a_missing_expert_is_refused_by_name():
    single = unstack(NAME, torch.zeros(3, 2, 1))
    del single["model.layers.3.mlp.experts.1.up_proj.lora_A.weight"]
    with pytest.raises(DataError, match=r"x: tensors .*experts\.\*\.up_proj.* are of 2 experts up to 2"):
        stack(single, "x")


def test_an_expert_of_another_shape_is_refused():
    single = unstack(NAME, torch.zeros(3, 2, 1))
    single["model.layers.3.mlp.experts.1.up_proj.lora_A.weight"] = torch.zeros(3, 1)
    with pytest.raises(DataError, match="not all of one shape"):
        stack(single, "x")
