"""LoRA for many adapters (slots) in one packed batch: a frozen layer and, on each slot's rows, that slot's own A and B.

There is one A and one B per Hugging Face projection, as in PEFT, in float32: these are the master weights. Under
tensor parallelism a column-parallel base has A whole and B split on its rows, a row-parallel base has A split on its
columns and B whole, so that only [T, P, R] numbers cross the group and every gradient comes out right without a
further reduction. Axes as in `lora_rows`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lora_rl.trainer.lora_rows import Span, pad_last, project_down, project_up, seeded_generator
from lora_rl.trainer.megatron_compat import mappings


@dataclass(frozen=True, kw_only=True)
class LoraPair:
    """A [R, K] and B [N, R] of one projection and slot, this rank's parts, in float32."""

    a: nn.Parameter
    b: nn.Parameter
    rank: int
    scaling: float
    """Factor on B·A·x."""
    dropout: float


@dataclass(frozen=True, kw_only=True)
class Fused:
    """What a Megatron linear layer holds, on this rank."""

    modules_P: tuple[str, ...]
    """Full Hugging Face names of its projections."""
    widths_P: tuple[int, ...]
    """Output width of each."""
    num_groups: int
    """The output is this many equal groups of [projection 0 | projection 1 | ...]."""
    row_parallel: bool
    """Split on the input, not on the output."""
    group: Any
    """The tensor-parallel process group."""


class SlotLoraLinear(nn.Module):
    """A base layer plus, on each slot's rows, scaling · B·A·x for each of its P projections."""

    def __init__(self, base: nn.Module, fused: Fused, spans: list[Span]):
        """All layers of a model share the list `spans`, which says whose rows the next forward pass has."""
        super().__init__()
        self.base = base
        self.fused = fused
        self.pairs: dict[int, dict[str, LoraPair]] = {}
        """By slot, then by projection; a projection that the slot's adapter leaves out is missing."""
        self._spans = spans

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        out, bias = self.base(x)
        if not any(self.pairs.get(span.slot) for span in self._spans):
            return out, bias
        return out + self._delta_TN(x.flatten(0, -2)).view_as(out), bias

    def _delta_TN(self, x_TK: Tensor) -> Tensor:
        spans = self._spans
        if any(span.dropout_seed is not None for span in spans):
            down_TPR = self._down_with_dropout(x_TK)
        else:
            down_TPR = project_down(x_TK, spans, [self._a_PrK(span.slot, x_TK) for span in spans])
        if self.fused.row_parallel:
            down_TPR = mappings.reduce_from_tensor_model_parallel_region(down_TPR, self.fused.group)
        else:
            down_TPR = mappings.copy_to_tensor_model_parallel_region(down_TPR, self.fused.group)
        parts = [
            project_up(down_TPR[:, part], spans, [self._scaled_b_Nr(span.slot, part, x_TK) for span in spans])
            for part in range(len(self.fused.modules_P))
        ]
        if len(parts) == 1:
            return parts[0]
        return torch.cat([part_TN.unflatten(1, (self.fused.num_groups, -1)) for part_TN in parts], dim=2).flatten(1)

    def _rank(self, slot: int) -> int:
        return max((pair.rank for pair in self.pairs.get(slot, {}).values()), default=0)

    def _a_PrK(self, slot: int, like: Tensor) -> Tensor:
        """A of all projections, zeros for those left out."""
        pairs, left_out = self.pairs.get(slot, {}), like.new_zeros(self._rank(slot), like.shape[1])
        return torch.stack(
            [pairs[name].a.to(like.dtype) if name in pairs else left_out for name in self.fused.modules_P]
        )

    def _scaled_b_Nr(self, slot: int, part: int, like: Tensor) -> Tensor:
        pair = self.pairs.get(slot, {}).get(self.fused.modules_P[part])
        if pair is None:
            return like.new_zeros(self.fused.widths_P[part], self._rank(slot))
        return (pair.b * pair.scaling).to(like.dtype)

    def _down_with_dropout(self, x_TK: Tensor) -> Tensor:
        """[T, P, R], each projection under a mask of its own, as in PEFT."""
        rank = max(self._rank(span.slot) for span in self._spans)
        outputs = []
        for span in self._spans:
            parts = [
                self._dropped(x_TK[span.rows], span, name) @ a_rK.T
                for name, a_rK in zip(self.fused.modules_P, self._a_PrK(span.slot, x_TK), strict=True)
            ]
            outputs.append(pad_last(torch.stack(parts, 1), rank))
        return torch.cat(outputs)

    def _dropped(self, x: Tensor, span: Span, name: str) -> Tensor:
        """`x` under a mask that follows from seed and projection alone: the same for any TP, and when recomputed."""
        pair = self.pairs.get(span.slot, {}).get(name)
        if pair is None or span.dropout_seed is None or pair.dropout == 0:
            return x
        generator = seeded_generator(f"{span.dropout_seed}/{name}", x.device)
        num_shares = self.fused.group.size() if self.fused.row_parallel else 1
        noise = torch.rand(x.shape[0], x.shape[1] * num_shares, generator=generator, device=x.device)
        share = noise.chunk(num_shares, 1)[self.fused.group.rank() if self.fused.row_parallel else 0]
        return x * (share >= pair.dropout) / (1 - pair.dropout)
