"""Matrix products of packed rows that belong to different adapters.

T packed rows, sorted by slot. A span's weight is low and wide, [Q, K]: rows are projected by it from K columns to Q,
and expanded by it from Q to K.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lora_rl.trainer.foreach import foreach_copy_
from lora_rl.trainer.transfer import on_device

ROW_STEP = 16
"""Low-rank rows are as wide as a multiple of this. Grouped products want strides of 16 bytes; on a CPU a product's last
bits hang on whether its rows stand at multiples of 64 bytes, which must not depend on neighbours."""

TILE_ROWS = 64
"""Rows that one program of a kernel of ours takes."""

KERNEL_HEIGHT = 64
"""Of a weight's height, a rank or a few, so much at a time."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """Rows `start` to `stop` of a packed batch belong to `slot`."""

    slot: int
    start: int
    stop: int
    dropout_seed: str | None = None
    """Fixes the dropout masks of these rows; null for no dropout."""

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


@dataclass(frozen=True, kw_only=True)
class Routing:
    """Whose rows a packed batch has: spans that cover all rows, or none where every adapter is off."""

    spans: tuple[Span, ...]
    tiles_X3: Tensor
    """X groups of at most `TILE_ROWS` rows of one span: its number, first row and stop; int32, on the device."""
    _bounds: dict[tuple[bool, ...], Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, spans: tuple[Span, ...], device: torch.device) -> "Routing":
        tiles = [
            (number, start, min(start + TILE_ROWS, span.stop))
            for number, span in enumerate(spans)
            for start in range(span.start, span.stop, TILE_ROWS)
        ]
        return cls(spans=spans, tiles_X3=on_device(torch.tensor(tiles, dtype=torch.int32).view(-1, 3), device))

    @functools.cached_property
    def sizes(self) -> list[int]:
        """Rows of each span."""
        return [span.stop - span.start for span in self.spans]

    def bounds(self, chosen: tuple[bool, ...]) -> Tensor:
        """First row and stop [S, 2] of the chosen spans, no rows for the others; int32, on the device."""
        if chosen not in self._bounds:
            bounds = [
                (span.start, span.stop if wanted else span.start)
                for span, wanted in zip(self.spans, chosen, strict=True)
            ]
            self._bounds[chosen] = on_device(torch.tensor(bounds, dtype=torch.int32), self.tiles_X3.device)
        return self._bounds[chosen]


@dataclass(frozen=True, kw_only=True)
class SpanWeights:
    """What each span's rows are multiplied by: a matrix [Q, K] of the span's own height, or none."""

    of_span: Sequence[Tensor | None]

    @functools.cached_property
    def heights(self) -> list[int]:
        """Zero where a span has none."""
        # a tensor's len() is Python's, five times as slow
        return [0 if weight_QK is None else weight_QK.shape[0] for weight_QK in self.of_span]

    @functools.cached_property
    def stacked_SQK(self) -> Tensor:
        """As high as the highest, zeros where a span has nothing. Stacked once for all products with it."""
        weights = [weight_QK for weight_QK in self.of_span if weight_QK is not None]
        height = max(self.heights)
        if min(self.heights) == height:
            return weights[0][None] if len(weights) == 1 else torch.stack(weights)
        stacked_SQK = weights[0].new_zeros(len(self.of_span), height, weights[0].shape[1])
        filled = [weight_QK[:own] for weight_QK, own in zip(stacked_SQK, self.heights, strict=True) if own]
        foreach_copy_(filled, weights)
        return stacked_SQK


def project(x_TK: Tensor, weights: SpanWeights, routing: Routing) -> Tensor:
    """Each span's rows times its own weight, transposed: [T, highest Q], with zeros where a span has none."""
    if _by_kernel(x_TK, weights):
        from lora_rl.trainer import row_kernels

        return row_kernels.project(x_TK, weights.stacked_SQK, routing.tiles_X3)
    match weights.of_span:
        case [Tensor() as weight_QK]:
            return x_TK @ weight_QK.T
    out_TQ = x_TK.new_zeros(len(x_TK), max(weights.heights))
    for span, weight_QK in zip(routing.spans, weights.of_span, strict=True):
        if weight_QK is not None:
            out_TQ[span.rows, : len(weight_QK)] = x_TK[span.rows] @ weight_QK.T
    return out_TQ


def add_expanded_(out_TK: Tensor, down_TQ: Tensor, weights: SpanWeights, routing: Routing) -> None:
    """Adds to `out_TK` each span's rows of `down_TQ` times its own weight."""
    if _by_kernel(out_TK, weights):
        from lora_rl.trainer import row_kernels

        row_kernels.add_expanded_(out_TK, down_TQ, weights.stacked_SQK, routing.tiles_X3)
        return
    parts = zip(out_TK.split(routing.sizes), down_TQ.split(routing.sizes), weights.of_span, strict=True)
    for out_tK, down_tQ, weight_QK in parts:
        if weight_QK is not None:
            out_tK.addmm_(first_columns(down_tQ, len(weight_QK)), weight_QK)


def outer(y_TQ: Tensor, x_TK: Tensor, routing: Routing, heights: Sequence[int]) -> Tensor:
    """The product of each span's rows of `y_TQ`, transposed, and `x_TK`: [S, Q, K] float32, summed so by kernels.

    It is zero below the span's own height, as there `y_TQ` is.
    """
    if has_kernels(x_TK) and len(routing.spans) == 1:
        # cuBLAS shares one span's rows out over the card.
        product: Any = torch.mm
        return product(y_TQ.T, x_TK, out_dtype=torch.float32)[None]
    shape = len(routing.spans), y_TQ.shape[1], x_TK.shape[1]
    if has_kernels(x_TK):
        from lora_rl.trainer import row_kernels

        out_SQK = x_TK.new_empty(shape, dtype=torch.float32)
        row_kernels.write_outer(out_SQK, y_TQ, x_TK, routing.bounds(tuple(height > 0 for height in heights)))
        return out_SQK
    out_SQK = x_TK.new_zeros(shape, dtype=torch.float32)
    parts = zip(y_TQ.split(routing.sizes), x_TK.split(routing.sizes), heights, strict=True)
    for out_QK, (y_tQ, x_tK, height) in zip(out_SQK, parts, strict=True):
        out_QK[:height] = first_columns(y_tQ, height).T @ x_tK
    return out_SQK


@dataclass(frozen=True, kw_only=True)
class OuterBlock:
    """A part of an outer product."""

    rows: slice
    columns: slice
    wanted: tuple[bool, ...]
    """By which spans; of the others it is anything."""


def outer_blocks(
    y_TQ: Tensor, x_TK: Tensor, routing: Routing, heights: Sequence[int], blocks: Sequence[OuterBlock]
) -> list[Tensor]:
    """Blocks of `outer`, each transposed and contiguous: [S, its columns, its rows]."""
    if not has_kernels(x_TK) or len(routing.spans) == 1:
        product_SQK = outer(y_TQ, x_TK, routing, heights)
        return [product_SQK[:, block.rows, block.columns].mT.contiguous() for block in blocks]
    from lora_rl.trainer import row_kernels

    products = []
    for block in blocks:
        y_TR, x_TN = y_TQ[:, block.rows], x_TK[:, block.columns]
        out_SNR = x_TK.new_empty(len(routing.spans), x_TN.shape[1], y_TR.shape[1], dtype=torch.float32)
        row_kernels.write_outer(out_SNR.mT, y_TR, x_TN, routing.bounds(block.wanted))
        products.append(out_SNR)
    return products


def first_columns(values: Tensor, width: int) -> Tensor:
    """A span's own columns, side by side as if there were no others: products then have the same bits as without."""
    return values if values.shape[1] == width else values[:, :width].contiguous()


def seeded_generator(text: str, device: torch.device) -> torch.Generator:
    """A generator whose stream is a function of `text`."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
    return torch.Generator(device).manual_seed(seed)


def padded_last(values: Tensor, width: int) -> Tensor:
    """`values` with zeros after its last dimension, up to `width`."""
    # padding by nothing would be a copy
    return values if values.shape[-1] == width else F.pad(values, (0, width - values.shape[-1]))


def has_kernels(x: Tensor) -> bool:
    """Whether rows `x` have kernels of ours: on CUDA in half precision."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and len(x) > 0


def _by_kernel(x: Tensor, weights: SpanWeights) -> bool:
    # Beyond that height our kernels pass the rows several times: where there is one span, cuBLAS does not.
    return has_kernels(x) and (len(weights.of_span) > 1 or max(weights.heights) <= KERNEL_HEIGHT)
