"""LoRA for many adapters (slots) in one packed batch: a frozen layer and, on each slot's rows, that slot's own A and B.

A layer of Megatron's holds P projections of Hugging Face's side by side. Their A's stand one below the other in one
matrix [Q, K], and their B's, transposed, in one block-diagonal [Q, N], so that a slot costs two thin products a layer
forward whatever P is; with an A that all projections share, Q is the rank and B is full. The float32 parameters are the
masters; products use copies in the model's type, and leave float32 gradients beside them.

Under tensor parallelism a column-parallel base has A whole and B split on its rows, a row-parallel base has A split on
its columns and B whole; the base's own reduction serves both. A gradient of what is whole is this rank's part of it:
the parts are summed once a step (`gradients`).

T packed rows, K input and N output width on this rank, Q rows of all A's.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lora_rl.trainer.adapter import Lora
from lora_rl.trainer.lora_rows import (
    ROW_STEP,
    OuterBlock,
    Routing,
    Span,
    SpanWeights,
    add_expanded_,
    outer,
    outer_blocks,
    project,
    seeded_generator,
)
from lora_rl.trainer.megatron_compat import mappings

Place = tuple[int, int, int | None, int | None]
"""First row and stop of a block, then its first column and stop."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Where a master A, or a B transposed, stands in its layer's matrix, this rank's part."""

    name: str
    """Of its projection; of the fused layer for an A that the layer's projections share."""
    master: nn.Parameter
    rows: slice
    columns: slice = field(default_factory=lambda: slice(None))

    @functools.cached_property
    def place(self) -> Place:
        return self.rows.start, self.rows.stop, self.columns.start, self.columns.stop


@dataclass(frozen=True, kw_only=True)
class SlotWeights:
    """One slot's A and B in one layer, to multiply by."""

    a_blocks: Sequence[Block]
    b_blocks: Sequence[Block]
    a_QK: Tensor
    b_QN: Tensor
    """Transposed and scaled."""
    dropout: float

    @functools.cached_property
    def a_parts(self) -> list[Tensor]:
        """Where each of `a_blocks` stands, as a view. All steps have the same: made anew, views cost what copies do."""
        return [self.a_QK[block.rows, block.columns] for block in self.a_blocks]

    @functools.cached_property
    def b_parts(self) -> list[Tensor]:
        """As `a_parts`, each as its master is: not transposed."""
        return [self.b_QN[block.rows, block.columns].T for block in self.b_blocks]

    @classmethod
    def of(cls, fused: "Fused", lora: Lora, masters: Mapping[str, nn.Parameter], dtype: torch.dtype) -> "SlotWeights":
        """For those projections of the layer that the adapter covers; `masters` holds their A's and B's by name."""
        modules = [module for module in fused.modules_P if lora.name_of_b(module) in masters]
        places = {name: place for place, name in enumerate(dict.fromkeys(map(lora.name_of_a, modules)))}
        rows = {name: slice(place * lora.rank, (place + 1) * lora.rank) for name, place in places.items()}
        width = -(-len(places) * lora.rank // ROW_STEP) * ROW_STEP
        first_a = masters[lora.name_of_a(modules[0])]
        return cls(
            a_blocks=[Block(name=name, master=masters[name], rows=rows[name]) for name in places],
            b_blocks=[
                Block(
                    name=lora.name_of_b(module),
                    master=masters[lora.name_of_b(module)],
                    rows=rows[lora.name_of_a(module)],
                    columns=fused.rows(module),
                )
                for module in modules
            ],
            a_QK=first_a.new_zeros(width, first_a.shape[1], dtype=dtype),
            b_QN=first_a.new_zeros(width, sum(fused.widths_P), dtype=dtype),
            dropout=lora.dropout,
        )


class GradientStacks:
    """What backward passes have left of a layer's slots, in float32: one stack for all slots of a micro-batch."""

    def __init__(self) -> None:
        self._stacks: dict[tuple[int, ...], tuple[Tensor, dict[Place, Tensor]]] = {}

    def add(self, slots: tuple[int, ...], a_grad_SQK: Tensor, b_grads: dict[Place, Tensor]) -> None:
        if slots not in self._stacks:
            self._stacks[slots] = a_grad_SQK, b_grads
            return
        a_stack_SQK, b_stacks = self._stacks[slots]
        a_stack_SQK.add_(a_grad_SQK)
        for place, b_grad_SNR in b_grads.items():
            b_stacks[place].add_(b_grad_SNR)

    def take(self) -> dict[tuple[int, ...], tuple[Tensor, dict[Place, Tensor]]]:
        """By slots, the gradients of their A's, and by place [S, N, R] those of their scaled B's; nothing is left."""
        stacks, self._stacks = self._stacks, {}
        return stacks


@dataclass(frozen=True, kw_only=True)
class Fused:
    """What a Megatron linear layer holds, on this rank."""

    modules_P: tuple[str, ...]
    """Full Hugging Face names of its projections, in the order of the weight's rows."""
    widths_P: tuple[int, ...]
    """Output width of each."""
    row_parallel: bool
    """Split on the input, not on the output."""
    group: Any
    """The tensor-parallel process group."""

    def rows(self, module: str) -> slice:
        """The projection's rows of the weight."""
        place = self.modules_P.index(module)
        start = sum(self.widths_P[:place])
        return slice(start, start + self.widths_P[place])


class SlotLoraLinear(nn.Module):
    """A base layer plus, on each slot's rows, scaling · B·A·x for each of its P projections."""

    def __init__(self, base: nn.Module, fused: Fused, routed: Callable[[], Routing]):
        """`routed` says whose rows the next forward pass has."""
        super().__init__()
        self.base = base
        self.fused = fused
        self.slots: dict[int, SlotWeights] = {}
        """A slot whose adapter leaves this layer out is missing."""
        self.gradients = GradientStacks()
        self._routed = routed

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        routing = self._routed()
        slots = [self.slots.get(span.slot) for span in routing.spans]
        lead = next((slot.a_blocks[0].master for slot in slots if slot is not None), None)
        if lead is None:
            return self.base(x)
        if not self.fused.row_parallel:
            x = mappings.copy_to_tensor_model_parallel_region(x, self.fused.group)
        base: Any = self.base
        share = (self.fused.group.rank(), self.fused.group.size()) if self.fused.row_parallel else (0, 1)
        lora = _Lora(routing=routing, slots=slots, noise_share=share, gradients=self.gradients)
        out_TN = _SlotLinear.apply(x.flatten(0, -2), base.weight, base.bias, lead, lora)
        out = out_TN.unflatten(0, x.shape[:-1])
        if self.fused.row_parallel:
            out = mappings.reduce_from_tensor_model_parallel_region(out, self.fused.group)
        return out, None


@dataclass(frozen=True, kw_only=True)
class _Lora:
    """What a forward pass and its backward pass need beside the layer's input."""

    routing: Routing
    slots: Sequence[SlotWeights | None]
    """Of each span."""
    noise_share: tuple[int, int]
    gradients: GradientStacks

    @functools.cached_property
    def a(self) -> SpanWeights:
        return SpanWeights(of_span=[slot and slot.a_QK for slot in self.slots])

    @functools.cached_property
    def b(self) -> SpanWeights:
        return SpanWeights(of_span=[slot and slot.b_QN for slot in self.slots])

    @functools.cached_property
    def b_places(self) -> dict[Place, OuterBlock]:
        """Each block of a B that any span has, with whose it is: in between, gradients are thrown away."""
        of_span = [{block.place: block for block in slot.b_blocks} if slot else {} for slot in self.slots]
        blocks = {place: block for own in of_span for place, block in own.items()}
        return {
            place: OuterBlock(rows=block.rows, columns=block.columns, wanted=tuple(place in own for own in of_span))
            for place, block in blocks.items()
        }

    @functools.cached_property
    def dropping(self) -> list[tuple[int, Span, SlotWeights]]:
        """Spans under dropout, with their number."""
        numbered = enumerate(zip(self.routing.spans, self.slots, strict=True))
        return [
            (number, span, slot) for number, (span, slot) in numbered if slot and span.dropout_seed and slot.dropout
        ]


class _SlotLinear(torch.autograd.Function):
    """W·x + B·A·x, where each span's rows have their own A and B; their gradients go to `lora.gradients`.

    B's product is added into W's: an output of the layer's full width is neither written nor read again. `lead` is any
    parameter that wants a gradient: it says that there is something to differentiate even where `x` is not.
    """

    @staticmethod
    def forward(ctx: Any, x_TK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, lead: Tensor, lora: _Lora) -> Tensor:
        out_TN = F.linear(x_TK, weight_NK, bias_N)
        down_TQ = project(x_TK, lora.a, lora.routing)
        for _, span, slot in lora.dropping:
            for block, drop in _drops(span, slot, lora.noise_share):
                down_TQ[span.rows, block.rows] = drop(x_TK[span.rows]) @ slot.a_QK[block.rows].T
        add_expanded_(out_TN, down_TQ, lora.b, lora.routing)
        ctx.save_for_backward(x_TK, weight_NK, down_TQ)
        ctx.lora = lora
        return out_TN

    @staticmethod
    def backward(ctx: Any, grad_TN: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x_TK, weight_NK, down_TQ = ctx.saved_tensors
        lora: _Lora = ctx.lora
        grad_down_TQ = project(grad_TN, lora.b, lora.routing)
        a_grad_SQK = outer(grad_down_TQ, x_TK, lora.routing, lora.a.heights)
        b_grads = outer_blocks(down_TQ, grad_TN, lora.routing, lora.b.heights, list(lora.b_places.values()))
        grad_x_TK = grad_TN @ weight_NK if ctx.needs_input_grad[0] else None
        a = list(lora.a.of_span)
        for number, span, slot in lora.dropping:
            a[number] = None
            for block, drop in _drops(span, slot, lora.noise_share):
                grad_down_tR = grad_down_TQ[span.rows, block.rows]
                a_grad_SQK[number, block.rows] = grad_down_tR.T @ drop(x_TK[span.rows])
                if grad_x_TK is not None:
                    grad_x_TK[span.rows] += drop(grad_down_tR @ slot.a_QK[block.rows])
        rest = SpanWeights(of_span=a) if lora.dropping else lora.a
        if grad_x_TK is not None and any(rest.heights):
            add_expanded_(grad_x_TK, grad_down_TQ, rest, lora.routing)
        slots = tuple(span.slot for span in lora.routing.spans)
        lora.gradients.add(slots, a_grad_SQK, dict(zip(lora.b_places, b_grads, strict=True)))
        return grad_x_TK, None, None, None, None


def _drops(
    span: Span, slot: SlotWeights, noise_share: tuple[int, int]
) -> list[tuple[Block, Callable[[Tensor], Tensor]]]:
    """Each A with what drops its inputs: a mask of its own, as in PEFT.

    Masks follow from the seed and the name alone: the same under any tensor parallelism, and when computed again. The
    seed is of the span in its micro-batch, so masks change with the packing.
    """
    place, num_shares = noise_share

    def dropping(name: str) -> Callable[[Tensor], Tensor]:
        def drop(x: Tensor) -> Tensor:
            generator = seeded_generator(f"{span.dropout_seed}/{name}", x.device)
            noise = torch.rand(x.shape[0], x.shape[1] * num_shares, generator=generator, device=x.device)
            return x * (noise.chunk(num_shares, 1)[place] >= slot.dropout) / (1 - slot.dropout)

        return drop

    return [(block, dropping(block.name)) for block in slot.a_blocks]
