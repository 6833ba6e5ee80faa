"""Triton kernels for packed rows that belong to different adapters. Triton comes with torch where that has CUDA."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from lora_rl.trainer.lora_rows import TILE_ROWS

TILE_COLUMNS = 128
MOST_INNER = 64
NUM_WARPS = 8


def add_expanded_(out_TK: Tensor, down_TQ: Tensor, weights_SQK: Tensor, tiles_X3: Tensor) -> None:
    """Adds to each row of `out_TK` its row of `down_TQ` times the weight of its span, rounded once.

    A row is read and written once whatever the number of spans; one product for each span takes as long to start as to
    run. `tiles_X3` is that of `Routing`. Last dimensions are contiguous.
    """
    grid = (triton.cdiv(out_TK.shape[1], TILE_COLUMNS), len(tiles_X3))
    kernel: Any = _add_expanded[grid]
    kernel(
        out_TK,
        down_TQ,
        weights_SQK,
        tiles_X3,
        down_TQ.shape[1],
        out_TK.shape[1],
        out_TK.stride(0),
        down_TQ.stride(0),
        weights_SQK.stride(0),
        weights_SQK.stride(1),
        ROWS=TILE_ROWS,
        COLUMNS=TILE_COLUMNS,
        INNER=min(MOST_INNER, max(16, triton.next_power_of_2(down_TQ.shape[1]))),
        num_warps=NUM_WARPS,
    )


@triton.jit
def _add_expanded(
    out_TK,
    down_TQ,
    weights_SQK,
    tiles_X3,
    num_inner,
    num_columns,
    out_stride,
    down_stride,
    weights_stride,
    weight_stride,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    tile = tiles_X3 + 3 * tl.program_id(1)
    span, start, stop = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    rows = start + tl.arange(0, ROWS)[:, None]
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None]
    weight_QK = weights_SQK + span.to(tl.int64) * weights_stride
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, num_inner, INNER):
        inner = first + tl.arange(0, INNER)
        down_mask = (rows < stop) & (inner < num_inner)[None]
        weight_mask = (inner < num_inner)[:, None] & (columns < num_columns)
        down = tl.load(down_TQ + rows.to(tl.int64) * down_stride + inner[None], mask=down_mask, other=0.0)
        weight = tl.load(weight_QK + inner[:, None] * weight_stride + columns, mask=weight_mask, other=0.0)
        total = tl.dot(down, weight, total, input_precision="ieee")
    mask = (rows < stop) & (columns < num_columns)
    place = out_TK + rows.to(tl.int64) * out_stride + columns
    sums = tl.load(place, mask=mask, other=0.0).to(tl.float32) + total
    tl.store(place, sums.to(out_TK.dtype.element_ty), mask=mask)
