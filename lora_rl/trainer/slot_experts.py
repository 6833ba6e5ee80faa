"""The experts of a sparse layer with LoRA for many adapters (slots) in one packed batch.

M dispatched rows, sorted by expert and within an expert by slot; E experts on this rank, S slots among the rows; P
projections fused in one layer (gate and up); K input and N output width, R the largest rank among the slots. A slot has
one A [E, R, K] and one B [E, N, R] a projection, expert by expert, in float32: these are the master weights. Under
tensor parallelism an expert is split like a dense MLP, and a gradient of what is whole is this rank's part of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lora_rl.trainer.lora_rows import ROW_STEP, first_columns, padded_last
from lora_rl.trainer.megatron_compat import mappings
from lora_rl.trainer.pointwise import swiglu

NO_SLOT = -1
"""Slot of rows whose adapter is off."""


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Which of the M rows are whose: row counts by expert and slot."""

    slots: tuple[int, ...]
    """The S slots among the rows, in order."""
    sizes_ES: Tensor

    def sizes(self) -> list[int]:
        """Rows of each pair of expert and slot, in the order of the rows."""
        return self.sizes_ES.flatten().tolist()

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Expert and place in `slots`, in the order of the rows."""
        num_experts, num_slots = self.sizes_ES.shape
        return ((expert, slot) for expert in range(num_experts) for slot in range(num_slots))


class ExpertPair:
    """A [E, R, K] and B [E, N, R] of one projection and slot, this rank's parts.

    `a` and `b` are leaves over the masters' memory: gradients of the masters themselves are already those of all ranks.
    """

    def __init__(self, master_a: nn.Parameter, master_b: nn.Parameter, scaling: float):
        """`scaling` is the factor on B·A·x."""
        self.a = master_a.detach().requires_grad_()
        self.b = master_b.detach().requires_grad_()
        self.scaling = scaling
        self._leaf_of = {master_a: self.a, master_b: self.b}

    def take_gradients(self) -> dict[nn.Parameter, Tensor]:
        """What backward passes have left since the last call, by master; nothing where there was none."""
        found = {master: leaf.grad for master, leaf in self._leaf_of.items() if leaf.grad is not None}
        self.a.grad = self.b.grad = None
        return found


class ExpertLinear(nn.Module):
    """A frozen layer of each expert plus, on each slot's rows, scaling · B·A·x for each of its P projections."""

    weight: nn.Parameter
    """[E, P·N, K], this rank's part; set once it is read: Megatron-Bridge knows no such parameter."""

    def __init__(self, projections: Sequence[str], *, row_parallel: bool):
        super().__init__()
        self.projections = tuple(projections)
        self.row_parallel = row_parallel
        self.register_parameter("weight", None)
        self.pairs: dict[int, dict[str, ExpertPair]] = {}
        """By slot, then by short name of the projection; a projection that the slot's adapter leaves out is missing."""

    def forward(self, x_MK: Tensor, groups: Groups) -> Tensor:
        """[M, P·N]; of a row-parallel layer this rank's part of the sum."""
        base = self._base(x_MK, groups)
        if not any(self.pairs.get(slot) for slot in groups.slots):
            return base
        down_MPR = self._down(x_MK, groups)
        parts = [self._up(down_MPR[:, part], part, groups) for part in range(len(self.projections))]
        return base + torch.cat(parts, 1)

    def _base(self, x_MK: Tensor, groups: Groups) -> Tensor:
        if _is_grouped(x_MK):
            return _grouped_mm(x_MK, self.weight, groups.sizes_ES.sum(1))
        # Slot by slot: a row's bits do not hang on how many rows other adapters bring to its expert.
        return torch.cat(
            [
                F.linear(rows, self.weight[expert])
                for rows, (expert, _) in zip(x_MK.split(groups.sizes()), groups.pairs(), strict=True)
            ]
        )

    def _down(self, x_MK: Tensor, groups: Groups) -> Tensor:
        """Each row times its expert's part of its slot's A's: [M, P, R], zeros beyond the slot's own rank."""
        weights_S = [self._a_EPrK(slot, x_MK) for slot in groups.slots]
        rank = -(-max(weight.shape[2] for weight in weights_S) // ROW_STEP) * ROW_STEP
        if _is_grouped(x_MK):
            padded_S = [F.pad(weight, (0, 0, 0, rank - weight.shape[2])).flatten(1, 2) for weight in weights_S]
            return _grouped_mm(x_MK, _by_expert(padded_S), groups.sizes_ES.flatten()).unflatten(1, (-1, rank))
        unbound_SE = [weight.flatten(1, 2).unbind(0) for weight in weights_S]
        outputs = [
            F.linear(rows, unbound_SE[slot][expert]).unflatten(1, weights_S[slot].shape[1:3])
            for rows, (expert, slot) in zip(x_MK.split(groups.sizes()), groups.pairs(), strict=True)
        ]
        return torch.cat([padded_last(output_mPr, rank) for output_mPr in outputs])

    def _up(self, down_MR: Tensor, part: int, groups: Groups) -> Tensor:
        """Each row times its expert's part of its slot's B of one projection: [M, N]."""
        weights_S = [self._scaled_b_ENr(slot, part, down_MR) for slot in groups.slots]
        if _is_grouped(down_MR):
            padded_S = [padded_last(weight, down_MR.shape[1]) for weight in weights_S]
            return _grouped_mm(down_MR, _by_expert(padded_S), groups.sizes_ES.flatten())
        unbound_SE = [weight.unbind(0) for weight in weights_S]
        return torch.cat(
            [
                F.linear(first_columns(rows, weights_S[slot].shape[2]), unbound_SE[slot][expert])
                for rows, (expert, slot) in zip(down_MR.split(groups.sizes()), groups.pairs(), strict=True)
            ]
        )

    def _rank(self, slot: int) -> int:
        return max((pair.a.shape[1] for pair in self.pairs.get(slot, {}).values()), default=0)

    def _a_EPrK(self, slot: int, like: Tensor) -> Tensor:
        """A of all projections, zeros for those left out."""
        pairs = self.pairs.get(slot, {})
        left_out = like.new_zeros(self.weight.shape[0], self._rank(slot), like.shape[1])
        parts = [pairs[name].a.to(like.dtype) if name in pairs else left_out for name in self.projections]
        return torch.stack(parts, 1)

    def _scaled_b_ENr(self, slot: int, part: int, like: Tensor) -> Tensor:
        pair = self.pairs.get(slot, {}).get(self.projections[part])
        if pair is None:
            return like.new_zeros(self.weight.shape[0], self.weight.shape[1] // len(self.projections), self._rank(slot))
        return (pair.b * pair.scaling).to(like.dtype)


class SlotExperts(nn.Module):
    """E gated MLPs, each on its own rows."""

    def __init__(self, tp_group: Any):
        super().__init__()
        self.fc1 = ExpertLinear(("gate_proj", "up_proj"), row_parallel=False)
        self.fc2 = ExpertLinear(("down_proj",), row_parallel=True)
        self._tp_group = tp_group

    def forward(self, x_MD: Tensor, groups: Groups) -> Tensor:
        """Outputs [M, D]."""
        x_MD = mappings.copy_to_tensor_model_parallel_region(x_MD, self._tp_group)
        part_MD = self.fc2(swiglu(self.fc1(x_MD, groups)), groups)
        return mappings.reduce_from_tensor_model_parallel_region(part_MD, self._tp_group)


def _by_expert(weights_S: Sequence[Tensor]) -> Tensor:
    """Weights [E, N, K] of each slot in the order of the rows, [E·S, N, K]."""
    return torch.stack(list(weights_S), 1).flatten(0, 1)


def _is_grouped(x: Tensor) -> bool:
    """Whether torch has a grouped kernel for rows `x`: on CUDA in bf16."""
    return x.is_cuda and x.dtype == torch.bfloat16 and len(x) > 0


def _grouped_mm(x_MK: Tensor, weights_GNK: Tensor, sizes_G: Tensor) -> Tensor:
    """Each group's rows times its own weight, transposed: [M, N]."""
    product: Any = torch._grouped_mm  # pyright: ignore[reportPrivateImportUsage]
    return product(x_MK.contiguous(), weights_GNK.transpose(-2, -1), sizes_G.cumsum(0, dtype=torch.int32))
