"""Tensors of experts: here one for all experts of a layer, in PEFT's files one for each.

`model.layers.0.mlp.experts.*.up_proj.lora_A.weight` [E, R, K] there is `...experts.0.up_proj.lora_A.weight` [R, K] and
so on, as transformers wrote such models before it stacked their experts. vLLM loads these names as they are; PEFT
stacks them while it loads.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from lora_rl.errors import DataError
from lora_rl.trainer.targets import EXPERT_NUMBER, of_experts, stacked_name


def unstack(name: str, whole: Tensor) -> dict[str, Tensor]:
    """An expert's tensor each, in order; a tensor that is not of experts as it is."""
    if not of_experts(name):
        return {name: whole}
    return {name.replace(".experts.*.", f".experts.{expert}."): part for expert, part in enumerate(whole)}


def stack(tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """Tensors with those of a layer's experts in one. Raises DataError where an expert's is missing or misshapen."""
    whole: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        number = EXPERT_NUMBER.search(name)
        if number is None:
            whole[name] = tensor
        else:
            experts.setdefault(stacked_name(name), {})[int(number.group())] = tensor
    for name, by_number in experts.items():
        parts = [by_number.get(number) for number in range(max(by_number) + 1)]
        if len({None if part is None else part.shape for part in parts}) != 1:
            raise DataError(
                f"{source}: tensors {name} are of {len(by_number)} experts up to {max(by_number)} and not all of one "
                "shape; export the adapter again"
            )
        whole[name] = torch.stack([part for part in parts if part is not None])
    return whole
