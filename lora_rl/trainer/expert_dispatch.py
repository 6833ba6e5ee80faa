"""The way of rows to their experts and back: sorted by expert and slot, and to the ranks that hold the experts.

M rows on this rank, one for each pair of a packed row and an expert it takes; M' those that come to this rank's E
experts; S slots among them; D width.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lora_rl.trainer.slot_experts import NO_SLOT, Groups

Compute = Callable[[Tensor, Groups], Tensor]
"""Outputs [M', D] of rows [M', D] that are sorted by expert and slot."""


def on_own_experts(
    rows_MD: Tensor, expert_M: Tensor, place_M: Tensor, slots: tuple[int, ...], num_experts: int, compute: Compute
) -> Tensor:
    """`compute` of the rows in the order that it asks for, back in theirs. `place_M` is each row's place in `slots`."""
    key_M = expert_M * len(slots) + place_M
    sizes_ES = key_M.bincount(minlength=num_experts * len(slots)).view(num_experts, len(slots))
    order_M = key_M.argsort(stable=True)
    outputs_MD = compute(rows_MD.index_select(0, order_M), Groups(slots=slots, sizes_ES=sizes_ES))
    return outputs_MD.index_select(0, order_M.argsort())


def on_all_experts(
    rows_MD: Tensor, expert_M: Tensor, slot_M: Tensor, num_experts: int, compute: Compute, group: Any
) -> Tensor:
    """As `on_own_experts`, where each rank of `group` holds an equal share of the experts. All ranks must call it."""
    num_own = num_experts // group.size()
    order_M = expert_M.argsort(stable=True)
    counts_W = (expert_M // num_own).bincount(minlength=group.size())
    sent = counts_W.tolist()
    received = _exchanged(counts_W, [1] * group.size(), [1] * group.size(), group).tolist()
    # Which expert a row is for and whose it is go before it.
    facts_M2 = torch.stack([expert_M % num_own, slot_M], 1).index_select(0, order_M)
    facts_M2 = _exchanged(facts_M2, sent, received, group)
    arrived_MD = _Exchange.apply(rows_MD.index_select(0, order_M), sent, received, group)
    slots_S, place_M = facts_M2[:, 1].unique(return_inverse=True)
    # A rank to which no row comes takes part all the same: its experts' gradients are zeros.
    slots = tuple(slots_S.tolist()) or (NO_SLOT,)
    outputs_MD = on_own_experts(arrived_MD, facts_M2[:, 0], place_M, slots, num_own, compute)
    return _Exchange.apply(outputs_MD, received, sent, group).index_select(0, order_M.argsort())


class _Exchange(torch.autograd.Function):
    """Sends `sent[w]` rows to rank w and receives `received[w]`; gradients go the other way."""

    @staticmethod
    def forward(ctx: Any, rows_MD: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchanged(rows_MD, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _exchanged(grads[0], ctx.received, ctx.sent, ctx.group), None, None, None


def _exchanged(rows_M: Tensor, sent: list[int], received: list[int], group: Any) -> Tensor:
    arrived_M = rows_M.new_empty(sum(received), *rows_M.shape[1:])
    dist.all_to_all_single(arrived_M, rows_M.contiguous(), received, sent, group=group)
    return arrived_M
