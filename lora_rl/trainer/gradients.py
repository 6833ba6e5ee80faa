"""Gradients of the slots' parameters over the ranks. Megatron's data parallelism needs CUDA, and wraps all weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lora_rl.trainer.ranks import Groups


@dataclass(frozen=True, kw_only=True)
class SlotParameter:
    """One A or B of a slot, this rank's part."""

    name: str
    value: nn.Parameter
    split_dim: int | None
    """Dimension, from the last, split over the tensor-parallel group; null where every rank holds the whole."""
    of_experts: bool = False
    """The first dimension counts experts: it is split over the expert-parallel group."""


def reduce_gradients(
    parameters: Sequence[SlotParameter], gradients: dict[nn.Parameter, Tensor], groups: Groups
) -> None:
    """Make what one rank found the gradient of the whole batch, in place, by one all-reduce a kind of group.

    Ranks that share a layer each have a part of the gradient of what all of them hold whole. Copies of the model have
    run other samples; where one has run none of a slot, its gradient is missing and counts as zeros. An expert has seen
    the samples of all copies that share its layer: only those that hold the same experts add up. All ranks must call it
    with the same parameters in order.
    """
    whole = [parameter.value for parameter in parameters if parameter.split_dim is None]
    if groups.tp.size() > 1:  # asked before a list of thousands is made
        _sum_in_place([gradients[value] for value in whole if value in gradients], groups.tp)
    if groups.dp.size() > 1:
        for parameter in parameters:
            if parameter.value not in gradients:
                gradients[parameter.value] = torch.zeros_like(parameter.value)
        for copies, of_experts in ((groups.dp, False), (groups.edp, True)):
            _sum_in_place([gradients[p.value] for p in parameters if p.of_experts == of_experts], copies)


def _sum_in_place(tensors: Sequence[Tensor], group: Any) -> None:
    if group.size() == 1 or not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))
